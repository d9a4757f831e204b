"""Watts and joules: boards, kernels, power caps, whole nodes, and decoders that are served."""
