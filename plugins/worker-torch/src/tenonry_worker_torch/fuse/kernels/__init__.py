"""Step kernels in the place of our own operations: found, made from the parts of layers, compared, timed. Worker
process.
"""
