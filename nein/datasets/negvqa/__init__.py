"""NegVQA: questions with their negations, from the hub, files or the drawn world."""
