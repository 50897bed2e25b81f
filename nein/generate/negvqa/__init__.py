"""Making NegVQA's questions out of any multiple-choice VQA file."""
