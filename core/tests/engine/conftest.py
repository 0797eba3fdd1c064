"""Engines of a test's own, in processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenonry_testkit.kernel.peer import Peer


@pytest.fixture
def start() -> Iterator[Callable[..., Peer]]:
    """Start an engine of this test's own."""
    peers: list[Peer] = []

    def started(**options: Any) -> Peer:
        peers.append(Peer(**options))
        return peers[-1].start()

    yield started
    for peer in peers:
        peer.close()
