"""Fused layers, packed weights and kernels of a loaded model, each compared with the original. Worker process."""
