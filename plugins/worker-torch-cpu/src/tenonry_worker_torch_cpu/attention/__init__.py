"""Attention backends for the CPU. Worker process."""
