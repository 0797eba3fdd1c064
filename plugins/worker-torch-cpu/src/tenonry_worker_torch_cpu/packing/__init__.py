"""Layouts of weights for CPUs. Worker process."""
