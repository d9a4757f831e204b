"""A graph becomes what a job runs: Graph -> Graph passes, in the order that `lower` knows."""
