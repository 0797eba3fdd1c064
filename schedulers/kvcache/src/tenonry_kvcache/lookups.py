"""Counts of looked up and cached prompt tokens, for the prefix cache and a KV connector. Engine process."""

from __future__ import annotations

from typing import NamedTuple


class Lookup(NamedTuple):
    """Tokens looked up (`queries`) and found (`hits`) in the prefix cache, and beyond it by the KV connector
    (`external_*`).
    """

    queries: int = 0
    hits: int = 0
    external_queries: int = 0
    external_hits: int = 0


NOTHING = Lookup()


class LookupCounts:
    """Sums since the last `take`. A row's share is stored until the row leaves, since its start may be undone."""

    def __init__(self, num_rows: int) -> None:
        self._by_row = [NOTHING] * num_rows
        self._queries = 0
        self._hits = 0
        self._external_queries = 0
        self._external_hits = 0

    def add(self, row: int, lookup: Lookup) -> None:
        """Count a lookup, once for each request at its first start."""
        self._by_row[row] = lookup
        self._count(lookup, 1)

    def leave(self, row: int, *, undo: bool) -> None:
        """Free the row; `undo`: it was not announced, and will be counted later."""
        if undo:
            self._count(self._by_row[row], -1)
        self._by_row[row] = NOTHING

    def lose_load(self, row: int) -> None:
        """Remove the hits of a failed load of the row."""
        lookup = self._by_row[row]
        self._count(Lookup(external_hits=lookup.external_hits), -1)
        self._by_row[row] = lookup._replace(external_hits=0)

    def _count(self, lookup: Lookup, sign: int) -> None:
        self._queries += sign * lookup.queries
        self._hits += sign * lookup.hits
        self._external_queries += sign * lookup.external_queries
        self._external_hits += sign * lookup.external_hits

    # An undone start may be in the previous counts: never below 0.
    def take(self) -> tuple[int, int]:
        """Return (queries, hits) of the prefix cache."""
        counts = (max(self._queries, 0), max(self._hits, 0))
        self._queries = 0
        self._hits = 0
        return counts

    def take_external(self) -> tuple[int, int]:
        """Return (queries, hits) of the KV connector."""
        counts = (max(self._external_queries, 0), max(self._external_hits, 0))
        self._external_queries = 0
        self._external_hits = 0
        return counts
