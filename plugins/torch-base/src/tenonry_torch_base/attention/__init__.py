"""Attention over a block-table KV cache: the interface of a backend, the ones that come with the worker, and the way in
from transformers. Worker process.
"""
