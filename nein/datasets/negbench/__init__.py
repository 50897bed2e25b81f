"""NegBench: captions and questions about images, from the official files or the drawn world."""
