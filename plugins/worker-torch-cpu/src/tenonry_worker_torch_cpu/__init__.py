"""The CPU part of the worker `torch`: attention, packing and step kernels. Worker process; imports torch."""
