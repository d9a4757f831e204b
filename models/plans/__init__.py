"""Plans of many devices: exchanges between ranks, and what measured iterations say of composed ones."""
