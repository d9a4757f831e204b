"""A program becomes rows: the columns that the cost models read."""
