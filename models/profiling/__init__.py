"""Measurements of one's own: rows of timed jobs as users write them, and graphs run and timed by torch."""
