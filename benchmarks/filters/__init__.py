"""How right the filters of a miniature build are."""
