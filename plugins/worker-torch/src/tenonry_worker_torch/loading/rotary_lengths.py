"""Rotary modules whose tables depend on the sequence length, in a batch of many rows: each token uses the table that
transformers uses for its row alone. Worker process.

Of one row, `generate` computes the prompt of P tokens with the table of length P, and the token at position p behind it
with that of length p + 1; keys in the cache stay as they are. So the length of a token's table follows from its
position and its prompt, however the prompt is cut into steps. Phi-3 and its relatives instead compute all tokens again
when a row outgrows the original length (`LengthClasses.restarts`).

Modules run their own code, once per table of a step: the last position of the sequence is added to the tokens, so that
transformers selects the table.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError
from tenonry.kv_cache import LengthClasses
from tenonry_torch_base.cache_argument import cache_argument
from tenonry_torch_base.rope_lengths import DYNAMIC, length_types, reset_tables
from tenonry_worker_torch.forward import StepLengths

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


class RotaryByLength:
    """The forward pass of one rotary module. `originals`: layer type → length up to which the first table holds."""

    def __init__(self, module: nn.Module, originals: dict[str, int], step: StepLengths) -> None:
        self.originals = originals
        self._types = length_types(module)
        self._module = module
        self._forward = module.forward
        self._step = step
        self.__signature__ = inspect.signature(module.forward)

    def __call__(
        self, x: torch.Tensor, position_ids: torch.Tensor, *layer_type: Any, **named: Any
    ) -> Any:
        lengths = self._step.of_tokens
        if lengths is None or len(lengths) != position_ids.shape[-1]:
            return self._alone(x, position_ids, *layer_type, **named)
        kind = layer_type[0] if layer_type else named.get("layer_type", "")
        if kind not in self.originals:
            return self._forward(x, position_ids, *layer_type, **named)
        tables = self.tables_of(lengths, kind)
        each = tables.unique().tolist()
        if len(each) == 1:
            return self._from_table(each[0], x, position_ids, *layer_type, **named)
        made: Any = None
        for table in each:
            places = (tables == table).nonzero()[:, 0]
            asked = position_ids.index_select(-1, places)
            part = self._from_table(table, x, asked, *layer_type, **named)
            made = _placed(made, part, places, len(tables))
        return made

    def grows(self, kind: str) -> bool:
        """Return True if each longer length has its own table."""
        return DYNAMIC in self._types[kind]

    def tables_of(self, lengths: torch.Tensor, kind: str) -> torch.Tensor:
        """The shortest length with the same table as each of `lengths`, for layers of that type."""
        original = self.originals[kind]
        if self.grows(kind):
            return lengths.clamp(min=original)
        return original + (lengths > original).long()

    def _from_table(
        self, table: int, x: torch.Tensor, positions: torch.Tensor, *rest: Any, **named: Any
    ) -> Any:
        """Output of the module for `positions` [..., T] of a sequence of length `table`."""
        last = positions.new_full((*positions.shape[:-1], 1), table - 1)
        made = self._alone(x, torch.cat([positions, last], -1), *rest, **named)
        return _each(made, lambda part: part[:, :-1])

    def _alone(self, x: torch.Tensor, position_ids: torch.Tensor, *rest: Any, **named: Any) -> Any:
        if position_ids.is_meta:  # without a largest position: any table has the shape
            return inspect.unwrap(type(self._module).forward)(
                self._module, x, position_ids, *rest, **named
            )
        reset_tables(self._module)
        return self._forward(x, position_ids, *rest, **named)

    def rotated(
        self, table: int, positions: torch.Tensor, layer_type: str, dtype: torch.dtype
    ) -> Any:
        """Compute `rotary(x, positions)` for positions [1, T] of sequences of length `table`."""
        x = torch.zeros(1, 1, 1, dtype=dtype, device=positions.device)
        rest = (layer_type,) if "" not in self._types else ()
        return self._from_table(table, x, positions, *rest)


def _each(made: Any, change: Any) -> Any:
    return tuple(map(change, made)) if isinstance(made, tuple | list) else change(made)


def _placed(made: Any, part: Any, places: torch.Tensor, count: int) -> Any:
    """`part` [1, t, …] at its `places` of a result for all `count` tokens."""
    if isinstance(part, tuple | list):
        whole = made or [None] * len(part)
        return tuple(_placed(old, new, places, count) for old, new in zip(whole, part, strict=True))
    if made is None:
        made = part.new_empty(part.shape[0], count, *part.shape[2:])
    return made.index_copy_(1, places, part)


def follow_lengths(
    model: PreTrainedModel, max_model_len: int
) -> tuple[StepLengths, LengthClasses] | None:
    """Use each token's own table instead of that of the longest row; None for equal tables.

    Raises ModelError for a module with another structure than those of transformers.
    """
    step = StepLengths()
    found: list[tuple[int, str]] = []
    for name, module in model.named_modules():
        types = length_types(module)
        if not types:
            continue
        originals = {kind: _original(module, name, kind, types[kind]) for kind in types}
        found += [(originals[kind], types[kind]) for kind in types]
        module.forward = RotaryByLength(module, originals, step)
    shorter = {original for original, _ in found if original < max_model_len}
    if not shorter:
        return None
    grows = len(shorter) > 1 or any(DYNAMIC in kind for _, kind in found)
    original = min(shorter)
    return step, LengthClasses(original, grows, _restarts(model, original))


def _original(module: nn.Module, name: str, layer_type: str, kind: str) -> int:
    """The longest sequence that has the first table."""
    config: Any = getattr(module, "config", None)
    if DYNAMIC in kind:
        found = getattr(module, "original_max_seq_len", None)
    else:
        parameters = getattr(config, "rope_parameters", None) or {}
        parameters = parameters[layer_type] if layer_type else parameters
        found = parameters.get("original_max_position_embeddings")
    if not isinstance(found, int) or found < 1:
        raise ModelError(
            f"{name} has rope type '{kind}', and does not say up to which length its first table holds; use --worker "
            "transformers"
        )
    return found


class _CacheOf:
    """Fake of a cache that holds `length` tokens."""

    is_compileable = False

    def __init__(self, length: int) -> None:
        self._length = length

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return self._length


def _restarts(model: PreTrainedModel, original: int) -> bool:
    """Return True if `generate` recomputes a row that outgrows `original`, by the model's own preparation of inputs."""
    ids = torch.zeros(1, original + 1, dtype=torch.long, device=model.device)
    prepare: Any = model.prepare_inputs_for_generation
    try:
        inputs = prepare(
            ids,
            attention_mask=None,
            next_sequence_length=1,
            use_cache=True,
            **{cache_argument(prepare): _CacheOf(original)},
        )
    except Exception as error:  # any class, since it is the model's code
        raise ModelError(
            f"{type(model).__name__} does not define how `generate` continues beyond {original} tokens: {error!r}; use "
            "--worker transformers"
        ) from error
    given = inputs.get("input_ids")
    return given is not None and given.shape[1] > 1


def by_length(rotary: nn.Module) -> RotaryByLength | None:
    """The wrapper of `follow_lengths` around a rotary module, if it depends on the length."""
    found = vars(rotary).get("forward")
    return found if isinstance(found, RotaryByLength) else None
