"""Learned cost models over physical floors, the bundles that hold them and the code that trains them."""
