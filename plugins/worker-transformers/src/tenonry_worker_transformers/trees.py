"""State of a request between steps, as a tree: caches, layers, dictionaries and lists, with tensors at the leaves.

A family may use any state: a `DynamicCache`, an object of its own, plain lists. Joining rows into one batch and
removing rows from it only requires the row dimension of each tensor. It is detected from a tree of one row; the self
check verifies the result. Worker process.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

Path = tuple[Any, ...]
Leaves = list[Any]
PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type,
    enum.Enum,
    torch.dtype,
    torch.device,
)


class NotBatchable(Exception):
    """These trees cannot be one batch: their rows have to be computed one by one."""


def rebuilt(trees: Sequence[Any], leaf: Callable[[Path, Leaves], Any]) -> Any:
    """A tree of the shape of `trees`, which are alike; `leaf` makes each leaf out of theirs.

    Objects shared within a tree are shared in the result. Raises NotBatchable if the shapes differ.
    """
    return _Rebuild(leaf).node((), list(trees))


class _Rebuild:
    def __init__(self, leaf: Callable[[Path, Leaves], Any]) -> None:
        self._leaf = leaf
        self._made: dict[tuple[int, ...], Any] = {}

    def node(self, path: Path, nodes: Leaves) -> Any:
        first = nodes[0]
        if any(type(other) is not type(first) for other in nodes):
            raise NotBatchable(f"{path}: rows hold {sorted({type(n).__name__ for n in nodes})}")
        if isinstance(first, PLAIN):
            return self._leaf(path, nodes)
        if _is_shared(first) or callable(first):
            return first
        key = tuple(map(id, nodes))
        if key not in self._made:
            is_tensor = isinstance(first, torch.Tensor)
            self._made[key] = self._leaf(path, nodes) if is_tensor else self._container(path, nodes)
        return self._made[key]

    def _container(self, path: Path, nodes: Leaves) -> Any:
        first = nodes[0]
        if isinstance(first, Mapping):
            items = self._items(path, [dict(node) for node in nodes])
            return type(first)(**items) if hasattr(first, "to_tuple") else _filled(first, items)
        if isinstance(first, list | tuple):
            if any(len(node) != len(first) for node in nodes):
                raise NotBatchable(f"{path}: lists of different length")
            children = [
                self.node((*path, place), list(parts))
                for place, parts in enumerate(zip(*nodes, strict=True))
            ]
            return type(first)(children)
        if not hasattr(first, "__dict__"):
            raise NotBatchable(f"{path}: a {type(first).__name__} is not understood")
        made = copy.copy(first)
        made.__dict__.update(self._items(path, [vars(node) for node in nodes]))
        return made

    def _items(self, path: Path, nodes: list[dict[Any, Any]]) -> dict[Any, Any]:
        first = nodes[0]
        if any(node.keys() != first.keys() for node in nodes):
            raise NotBatchable(f"{path}: rows hold different things")
        return {key: self.node((*path, key), [node[key] for node in nodes]) for key in first}


def _filled(like: Any, items: dict[Any, Any]) -> Any:
    made = copy.copy(like)
    made.clear()
    made.update(items)
    return made


def _is_shared(node: Any) -> bool:
    """Return True for parts of the model, which belong to no row and are never copied."""
    from transformers import PretrainedConfig

    return isinstance(node, torch.nn.Module | PretrainedConfig)


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Every tensor of a tree, once."""
    found: dict[int, torch.Tensor] = {}

    def leaf(_path: Path, leaves: Leaves) -> Any:
        if isinstance(leaves[0], torch.Tensor):
            found[id(leaves[0])] = leaves[0]
        return leaves[0]

    rebuilt([tree], leaf)
    yield from found.values()


def state_bytes(tree: Any) -> int:
    """Bytes of a tree's floating point tensors: K/V and states, without positions and masks."""
    return sum(tensor.nbytes for tensor in tensors(tree) if tensor.is_floating_point())


class RowDimensions:
    """Row dimension of each tensor, by path; detected from trees of one row."""

    def __init__(self) -> None:
        self._known: dict[Path, int] = {}

    def joined(self, trees: Sequence[Any], shifts: Sequence[int]) -> Any:
        """One tree for the rows of all; `shifts[i]` places on the left of tree i are padding.

        Tensors of different lengths are padded with zeros on the left. Numbers must be equal, or lengths that differ by
        the padding. Raises NotBatchable.
        """

        def leaf(path: Path, leaves: Leaves) -> Any:
            if isinstance(leaves[0], torch.Tensor):
                return self._joined_tensors(path, leaves)
            return _joined_values(path, leaves, shifts)

        return rebuilt(trees, leaf)

    def taken(self, tree: Any, places: torch.Tensor) -> Any:
        """The tree of some of its rows."""

        def leaf(path: Path, leaves: Leaves) -> Any:
            value = leaves[0]
            if not isinstance(value, torch.Tensor) or path not in self._known:
                return value
            return value.index_select(self._known[path], places)

        return rebuilt([tree], leaf)

    def learn(self, tree: Any) -> None:
        """Look at a tree of one row: the first dimension of size 1 counts rows."""

        def leaf(path: Path, leaves: Leaves) -> Any:
            value = leaves[0]
            if isinstance(value, torch.Tensor) and value.dim() and 1 in value.shape:
                self._known.setdefault(path, value.shape.index(1))
            return value

        rebuilt([tree], leaf)

    def _joined_tensors(self, path: Path, found: list[torch.Tensor]) -> torch.Tensor:
        dim = self._known.get(path)
        if dim is None:
            if all(torch.equal(found[0], other) for other in found[1:]):
                return found[0]
            raise NotBatchable(f"{path}: a tensor {tuple(found[0].shape)} without rows")
        return torch.cat(padded(found, dim, str(path)), dim)


def padded(found: Sequence[torch.Tensor], row_dim: int, name: str) -> list[torch.Tensor]:
    """Tensors that may differ in one dimension besides `row_dim`, with zeros on the left of the shorter ones."""
    sizes = [torch.tensor(tensor.shape) for tensor in found]
    if any(len(size) != len(sizes[0]) for size in sizes):
        raise NotBatchable(f"{name}: tensors of different rank")
    most = torch.stack(sizes).amax(0)
    differing = {
        dim
        for size in sizes
        for dim in torch.nonzero(size != most)[:, 0].tolist()
        if dim != row_dim
    }
    if not differing:
        return list(found)
    if len(differing) > 1:
        raise NotBatchable(f"{name}: tensors differ in dimensions {sorted(differing)}")
    (dim,) = differing
    behind = len(sizes[0]) - 1 - dim
    return [
        functional.pad(tensor, [0, 0] * behind + [int(most[dim]) - tensor.shape[dim], 0])
        for tensor in found
    ]


def _joined_values(path: Path, values: Leaves, shifts: Sequence[int]) -> Any:
    first = values[0]
    if all(value == first for value in values[1:]):
        return first
    if isinstance(first, int) and not isinstance(first, bool):
        shifted = {value + shift for value, shift in zip(values, shifts, strict=True)}
        if len(shifted) == 1:
            return shifted.pop()
    raise NotBatchable(f"{path}: {values[:3]} differ")
