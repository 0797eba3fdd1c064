"""Weights in few bits for the worker `torch`: quantisations of the point `tenonry.quantisations`."""
