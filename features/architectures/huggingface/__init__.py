"""Transformers from the fields of a Hugging Face `config.json`: one module per group of families."""
