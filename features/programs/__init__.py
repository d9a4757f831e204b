"""A lowered graph becomes a program: work of every op forward and backward, the optimizer step, memory."""
