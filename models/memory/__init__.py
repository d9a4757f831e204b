"""Peak memory: what allocators reserve and devices show beyond the tensors of a program."""
