"""NegVQA: can a vision-language model answer the negation of a question that it can answer?"""
