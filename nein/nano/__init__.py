"""The nano world: drawn scenes with known truth, and small models trained on them. No network needed."""
