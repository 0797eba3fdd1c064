"""Speculative decoding: verifies several draft tokens per pass."""
