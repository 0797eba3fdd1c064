"""Kernels in C for parts of a step on the CPU, called by address."""
