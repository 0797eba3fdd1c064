"""Visible keys of a layer's queries, read off the mask function that the model passes to transformers.

Some models pass their window to attention, others have it in the mask only. transformers calls a registered function
for each kind of layer; ours reads the rule off the mask function, far beyond the length of the running prompt. It acts
during a model's first run; afterwards block tables and positions determine the visible keys. Worker process.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MaskFunction = Callable[[Any, Any, torch.Tensor, torch.Tensor], torch.Tensor]

WANTS_MASK = "tenonry_wants_mask"  # attribute of a config whose model slices its mask
MAX_POSITIONS = 1 << 22  # bound for reading masks
_running = threading.local()


@dataclass(frozen=True, slots=True)
class Reach:
    """Keys visible to a query, none of them later: the last `window` ones, its own included (0: all), or those of its
    own chunk of `chunk` positions (0: of all chunks).
    """

    window: int = 0
    chunk: int = 0

    def first(self, positions: torch.Tensor) -> torch.Tensor:
        """The first position that the queries at `positions` see."""
        if self.window:
            return (positions + 1 - self.window).clamp_min(0)
        if self.chunk:
            return positions // self.chunk * self.chunk
        return torch.zeros_like(positions)


CAUSAL = Reach()


@contextmanager
def reading_masks(max_model_len: int) -> Iterator[None]:
    """Context in which requested masks are read, for sequences of at most `max_model_len` tokens."""
    _running.positions = min(max(max_model_len, 2), MAX_POSITIONS)
    _running.made = []
    try:
        yield
    finally:
        _running.positions = 0
        _running.made = []


def make_mask(*arguments: Any, mask_function: MaskFunction, **options: Any) -> torch.Tensor | None:
    """Return the mask function for transformers. None while serving, and for plain causal attention; an empty one, or
    the mask itself, for models that slice it. Otherwise, in a model's first run, the mask of `eager` attention; its
    rule is stored for `reach_of`.
    """
    positions = getattr(_running, "positions", 0)
    wants_mask = getattr(options.get("config"), WANTS_MASK, False)
    if not positions:
        return torch.empty(1, 1, 0, 0) if wants_mask else None
    device = torch.device(options.get("device", "cpu"))
    reach = read_reach(
        mask_function,
        positions,
        torch.device("cpu") if device.type == "meta" else device,
        use_vmap=bool(options.get("use_vmap")),
    )
    if reach == CAUSAL and not wants_mask:
        return None
    from transformers.masking_utils import eager_mask

    options["allow_is_bidirectional_skip"] = False
    mask: torch.Tensor = eager_mask(*arguments, mask_function=mask_function, **options)
    _running.made.append((mask, reach))
    return mask


def reach_of(mask: torch.Tensor | None) -> Reach | None:
    """Rule of a mask, or of a view of the whole of it; None for a mask of the model's own, or an unknown rule."""
    if mask is None:
        return CAUSAL
    for made, reach in getattr(_running, "made", ()):
        if _is_whole(mask, made):
            return reach
    return None


def _is_whole(view: torch.Tensor, mask: torch.Tensor) -> bool:
    """Return True if a tensor is an identical view of another one's storage."""
    return (
        view.untyped_storage()._cdata == mask.untyped_storage()._cdata  # noqa: SLF001 - the only identity that views share
        and (view.shape, view.stride()) == (mask.shape, mask.stride())
    )


def read_reach(
    mask_function: MaskFunction,
    num_positions: int,
    device: torch.device | None = None,
    *,
    use_vmap: bool = False,
) -> Reach | None:
    """Return the rule of `mask_function(batch, head, query, key)` for positions below `num_positions`; None for another
    one.

    The first query that cannot attend to the first key marks the end of a window or a chunk. Whole rows of the mask
    then distinguish the two, and verify the rule.
    """
    sees = _vmapped(mask_function) if use_vmap else mask_function
    try:
        every = torch.arange(num_positions, device=device)
        blind = (~_evaluate(sees, every, torch.zeros_like(every))).nonzero()
        size = int(blind[0]) if len(blind) else 0
        candidates = [Reach(window=size), Reach(chunk=size)] if size else [CAUSAL]
        for reach in candidates:
            if _is_rule(sees, reach, num_positions, device):
                return reach
    except (
        IndexError,
        RuntimeError,
    ):  # it depends on tensors of the prompt, such as the token types of images
        return None
    return None


def _is_rule(
    mask_function: MaskFunction, reach: Reach, num_positions: int, device: torch.device | None
) -> bool:
    """Return True if rows near every edge follow the rule, and one key beyond the query does."""
    size = reach.window or reach.chunk or num_positions // 2
    last = num_positions - 1
    edges = {0, 1, 2, last // 3, last}
    for multiple in (1, 2, 3):
        edges |= {multiple * size + offset for offset in (-1, 0, 1)}
    for query in sorted(edge for edge in edges if 0 <= edge <= last):
        keys = torch.arange(min(query + 2, num_positions), device=device)
        queries = torch.full_like(keys, query)
        wanted = (keys <= query) & (keys >= reach.first(queries))
        if not torch.equal(_evaluate(mask_function, queries, keys), wanted):
            return False
    return True


def _vmapped(mask_function: MaskFunction) -> MaskFunction:
    """Vectorise a mask function of single numbers."""

    def over_pairs(
        batch: Any, head: Any, queries: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        of_pair = torch.vmap(lambda query, key: mask_function(batch, head, query, key))
        sees: torch.Tensor = of_pair(queries, keys)
        return sees

    return over_pairs


def _evaluate(
    mask_function: MaskFunction, queries: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    """Visibility of key i to query i: bool[N]."""
    zero = torch.zeros((), dtype=torch.long, device=keys.device)
    sees = mask_function(zero, zero, queries, keys)
    return sees.to(torch.bool).expand(queries.shape)
