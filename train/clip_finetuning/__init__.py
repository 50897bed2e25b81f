"""The parts of `train/finetune_clip.py`: data, losses, towers, options, export, the alpha sweep."""
