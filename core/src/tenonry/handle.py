"""Handles: the number by which engine, wire and worker know a request. Made in a front end.

A handle is (index of the front end, counter), so it says by itself where its outputs go.
"""

from __future__ import annotations

CLIENT_SHIFT = 48  # the counter has 48 bits, the index of the front end the 16 above them


def make_handle(client: int, number: int) -> int:
    """The handle of the request with this number of one front end."""
    return (client << CLIENT_SHIFT) + number


def client_of(handle: int) -> int:
    """The index of the front end that made a handle."""
    return handle >> CLIENT_SHIFT
