"""Composition: costs of single ops become time, memory and energy of an iteration."""
