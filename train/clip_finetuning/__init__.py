"""Parts of `train/finetune_clip.py`: options, data, and the model with its losses and learning rate."""
