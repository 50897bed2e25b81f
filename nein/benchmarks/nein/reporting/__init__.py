"""What is shown of runs on NeIn: tables and page, grid, comparisons."""
