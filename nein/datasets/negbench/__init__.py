"""NegBench: captions and questions about pictures, from the official files or the drawn world."""
