"""Recipes of the nano zoo, one module per family; `train/nano.py` is the command that runs them."""
