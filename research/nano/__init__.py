"""Recipes of the nano zoo, one module per family; `__main__.py` is the command that runs them."""
