"""Reference models in plain torch, written for perfcast's examples and tests."""
