"""Decoding steps as CUDA graphs. Worker process."""
