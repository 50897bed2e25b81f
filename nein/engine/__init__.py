"""What every benchmark and data maker runs on: folders, blocks, files, pictures, processes."""
