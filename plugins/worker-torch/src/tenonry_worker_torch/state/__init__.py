"""Layers with state by row: convolution windows and recurrent matrices, instead of K/V by token. Worker process.

The layer's own code runs over our state. A *mixer* is a module that keeps state through the cache object of
transformers; its forward is replaced on the instance by one that splits the flattened batch by row and passes each part
a cache object filled with the rows' state.
"""
