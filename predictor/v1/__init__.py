"""Generated from proto/predictor/v1 by proto/generate.py; never edited by hand."""
