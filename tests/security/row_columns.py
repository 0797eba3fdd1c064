"""Finds the columns by row of an engine's parts, fills free rows with remains of other requests, and checks those
columns whose free rows hold a fixed value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from tenonry.request import Request
from tenonry_torch_base.sampler.penalties import RowTables

ELSEWHERE = frozenset(
    {
        "model",
        "forward",
        "buffers",
        "config",
        "context",
        "affinity",
        "targets",
        "layers",
        "kv_caches",
    }
)  # attributes that hold no columns
# Columns that are reset when a row leaves, with their value in a free row; all others are written when a row enters.
RESET = {
    "AllowedTokens.active": 0,
    "BadWords.active": 0,
    "BatchState.handle": 0,
    "BatchState.num_blocks": 0,
    "BlockTables._count": 0,
    "AdapterRows._row_number": -1,
    "GrammarMasks._made": -1,
    "GrammarMasks.active": 0,
    "LogitBias.active": 0,
    "MinTokens.active": 0,
    "Penalties.active": 0,
    "PrefixCache._due": np.iinfo(np.int32).max,
    "PrefixCache.hits": 0,
    "RowTables.line": -1,
    "Rows.announced": 0,
    "Rows.has_grammar": 0,
    "SamplingColumns.is_processed": 0,
    "GroupTable.count": 0,
    "GroupTable.past": 0,
    "Slabs._slab": -1,
    "StepValidator._runs": 0,
    "StepValidator._stay": 0,
    "StepValidator._waits": 0,
}
# Keyed by row, or sets of rows.
KEYED = frozenset(
    {
        "BadWords._of_row",
        "GrammarMasks._rows",
        "LogitBias._of_row",
        "MinTokens._of_row",
        "Rows.active",
        "Rows.logprob_rows",
        "Rows.prompt_logprob_rows",
    }
)
NO_CREDIT = -1e9  # a row without credit is not drafted for
LISTS = {"LookupCounts._by_row": (0, 0, 0, 0)}
# These only grow during the life of an engine, so that two requests of a row never share a number.
COUNTERS = frozenset({"Rows.generation", "Rows.scheduled_in", "ForwardPass.generation"})


class Column(NamedTuple):
    """`values` with the rows along `axis`: a numpy array, for a tensor over the same memory."""

    name: str
    values: np.ndarray
    axis: int

    def rows_of(self, rows: list[int]) -> np.ndarray:
        """Values of some rows."""
        return self.values.take(rows, self.axis)

    def fill(self, rows: list[int], rng: np.random.Generator) -> None:
        """Write remains of other requests, plausible ones and impossible ones."""
        place = (slice(None),) * self.axis + (rows,)
        shape = self.values[place].shape
        kind = self.values.dtype.kind
        if kind == "b":
            self.values[place] = rng.random(shape) < rng.random()
        elif kind == "f":
            self.values[place] = rng.choice([np.nan, -2.0, 0.01, 0.9, 3.0, 1e30], shape)
        else:
            most = int(rng.choice([40, 2000]))
            self.values[place] = rng.integers(0 if kind == "u" else -2, most, shape)


def columns_of(root: Any, num_rows: int) -> Iterator[Column]:
    """Columns of all objects of tenonry that are reachable from `root` through attributes."""
    for name, value in reachable(root, num_rows):
        if isinstance(value, np.ndarray) and value.flags.writeable:
            axis = next((i for i, size in enumerate(value.shape[:2]) if size == num_rows), None)
            if axis is not None:
                yield Column(name, value, axis)


def reachable(root: Any, most: int) -> Iterator[tuple[str, Any]]:
    """Attributes of all objects of tenonry that are reachable from `root`, tensors as arrays; `most` of a list."""
    seen: set[int] = set()
    waiting = [(type(root).__name__, root)]
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor) and value.device.type == "cpu":
            value = value.detach().numpy()
        yield name, value
        if isinstance(value, list | tuple | dict):
            each = value.values() if isinstance(value, dict) else value
            waiting += [(name, one) for one in list(each)[:most]]
        elif isinstance(value, msgspec.Struct | Request):
            continue  # a request, whose tokens may be as many as there are rows
        elif value is root or type(value).__module__.startswith("tenonry"):
            waiting += [(f"{type(value).__name__}.{key}", one) for key, one in attributes(value)]


def attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Attributes of an object, from its dictionary and its slots."""
    names = [*getattr(value, "__dict__", ())]
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    for name in names:
        if name not in ELSEWHERE and not name.startswith("__"):
            yield name, getattr(value, name, None)


def poison(root: Any, num_rows: int, free: list[int], rng: np.random.Generator) -> set[str]:
    """Fill the free rows of every column that is written on entry, and check the others; names of the columns."""
    names = set()
    for name, value in reachable(root, num_rows):
        if name in KEYED and isinstance(value, dict | set):
            names.add(name)
            assert not set(value) & set(free), f"{name} has the free rows {set(value) & set(free)}"
        elif name == "DraftController._rows" and isinstance(value, list):
            names.add(name)
            for row in free:
                value[row].credit = NO_CREDIT
        elif name in LISTS and isinstance(value, list):
            names.add(name)
            assert {value[row] for row in free} <= {LISTS[name]}, f"{name} has values of free rows"
    for column in columns_of(root, num_rows):
        names.add(column.name)
        if column.name in COUNTERS or not free:
            continue
        if column.name in RESET:
            found = column.rows_of(free)
            assert (found == RESET[column.name]).all(), f"{column.name} of free rows is {found}"
        else:
            column.fill(free, rng)
    for _, value in reachable(root, num_rows):
        poison_lines(value, rng)
    return names


def poison_lines(owner: Any, rng: np.random.Generator) -> None:
    """Fill the free lines of tables whose lines belong to rows, see `RowTables`."""
    found = dict(attributes(owner)) if type(owner).__module__.startswith("tenonry") else {}
    for tables in [each for each in found.values() if isinstance(each, RowTables)]:
        for name, value in found.items():
            if isinstance(value, torch.Tensor) and value.dim() == 2:
                free = sorted(set(range(len(value))) - set(tables.line.tolist()))
                Column(name, value.numpy(), 0).fill(free, rng)
