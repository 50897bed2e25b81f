"""Models that answer about a picture: VQA, detection, image-text matching; loaded on demand."""
