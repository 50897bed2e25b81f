"""NegBench: retrieval and multiple choice with negated captions, its analysis, and its data.

Alhamoud et al., "Vision-Language Models Do Not Understand Negation" (CVPR 2025); the released files and code
are at https://github.com/m1k2zoo/negbench.
"""
