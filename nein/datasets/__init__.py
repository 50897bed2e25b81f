"""What a record of each benchmark is, and how it is read."""
