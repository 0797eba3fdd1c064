"""Requests for vectors and scores instead of tokens: what they may ask for, and the calls that make them."""
