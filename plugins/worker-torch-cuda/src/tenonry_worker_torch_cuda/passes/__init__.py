"""Model passes for CUDA. Worker process."""
