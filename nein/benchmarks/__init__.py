"""The benchmarks: NeIn, NegBench, NegVQA."""
