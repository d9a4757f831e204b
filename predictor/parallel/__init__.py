"""Plans: which device holds what, and what the devices exchange."""
