"""Making data: NeIn, NegBench and NegVQA from captioned or annotated images."""
