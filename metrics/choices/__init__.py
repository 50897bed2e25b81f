"""Multiple-choice questions about pictures: prompts, and models that answer with a letter."""
