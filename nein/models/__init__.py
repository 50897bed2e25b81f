"""From a name to a loaded model: references, editors, language models, checkpoints of other layouts."""
