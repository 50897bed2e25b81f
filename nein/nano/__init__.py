"""The nano world: drawn scenes with known truth, and small models trained on them. Works without a network."""
