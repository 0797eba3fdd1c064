"""Full garbage collections wait for a time when they are short."""

from __future__ import annotations

import gc

import pytest

from tenonry_openai_server.serving import collector
from tenonry_openai_server.serving.collector import DUE_COUNT, FEW_CONNECTIONS, MAX_COUNT


@pytest.fixture
def collections(monkeypatch):
    """A started owner of the collections, the full collections it ran, and the open connections."""
    runs: list[int] = []
    connections: list[int] = []
    full = collector.FullCollections(connections.__len__)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    full.start()
    monkeypatch.setattr(gc, "collect", lambda: runs.append(1))
    yield full, runs, connections
    full.stop()


@pytest.mark.parametrize(
    ("count", "open_connections", "expected"),
    [
        (DUE_COUNT - 1, 0, 0),
        (DUE_COUNT, 0, 1),
        (DUE_COUNT, FEW_CONNECTIONS, 1),
        (DUE_COUNT, FEW_CONNECTIONS + 1, 0),
        (MAX_COUNT, 100_000, 1),
    ],
)
def test_full_collection_is_run_when_due_and_short(
    count, open_connections, expected, collections, monkeypatch
):
    full, runs, connections = collections
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, count))
    connections.extend(range(open_connections))
    full.poll()
    assert len(runs) == expected


def test_allocator_starts_none_until_the_end(monkeypatch):
    monkeypatch.setattr(gc, "freeze", lambda: None)  # what the test leaves is collected
    before = gc.get_threshold()
    full = collector.FullCollections(lambda: 0)
    full.start()
    try:
        assert gc.get_threshold() == (*before[:2], collector.NEVER)
    finally:
        full.stop()
    assert gc.get_threshold() == before
    full.stop()
    full.poll()
    assert gc.get_threshold() == before
