"""NegBench: retrieval and multiple choice with negated captions (Alhamoud et al., CVPR 2025,
https://github.com/m1k2zoo/negbench), and its analysis of templates."""
