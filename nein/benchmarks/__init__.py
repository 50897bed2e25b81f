"""The benchmarks NeIn, NegBench, NegVQA, rewriters and generators, and what all have in common."""
