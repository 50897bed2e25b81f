"""Building NegBench data: concepts per image, negated captions, multiple-choice questions, hard pairs."""
