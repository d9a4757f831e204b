"""The best plan: candidates as columns, bounds that discard most, and exact costs for the rest."""
