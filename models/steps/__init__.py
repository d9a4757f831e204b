"""Iterations of whole models on one device: op times as timed iterations teach them."""
