"""Models that answer about an image: VQA, detection, image-text matching."""
