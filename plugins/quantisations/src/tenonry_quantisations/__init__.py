"""Quantised weights for the worker `torch`: implementations of the point `tenonry.quantisations`."""
