"""NeIn: samples with their pictures, from the drawn world, a folder or the hub."""
