"""Sentences and words: templates of instructions, families of negation, the grammar of nouns."""
