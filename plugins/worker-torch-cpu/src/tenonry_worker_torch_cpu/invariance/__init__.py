"""Batch-invariant layers, and the check of their bits. Worker process."""
