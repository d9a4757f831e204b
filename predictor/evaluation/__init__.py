"""Held-out accuracy, measured through the public Predictor."""
