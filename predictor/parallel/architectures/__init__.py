"""Training architectures of published studies as formulas: servers, confidential links, scale-up limits."""
