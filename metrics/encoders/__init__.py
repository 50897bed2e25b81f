"""Networks that turn pictures (and sentences) into features; one module per family, loaded on demand."""
