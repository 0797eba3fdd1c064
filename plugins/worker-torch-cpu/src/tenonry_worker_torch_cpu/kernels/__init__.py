"""Step kernels instead of our own operations: found, made from the parts of layers, compared, timed. Worker process."""
