"""Single ops and kernels: physical floors, and what measurements add to them."""
