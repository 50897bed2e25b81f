"""`nein mend`: the remedies that can act on a model."""
