"""Fine-tune editors on NeIn, and CLIP models on NegBench."""
