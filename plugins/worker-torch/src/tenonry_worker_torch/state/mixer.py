"""One layer with state in a flattened batch: its own code, called with the tokens and the state of one row at a time,
and with all decoding rows together. Worker process.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tenonry.errors import ModelError
from tenonry_worker_torch.state.arguments import (
    Assembled,
    changed,
    one_token_each,
    stacked,
    tensors_in,
)
from tenonry_worker_torch.state.continuation import MASK, Continuation, Trial
from tenonry_worker_torch.state.layer_cache import LayerState
from tenonry_worker_torch.state.mixers import CacheArgument, cache_layers
from tenonry_worker_torch.state.pools import held, put_back, room_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn
    from transformers import PretrainedConfig

    from tenonry_worker_torch.state.layer_cache import StateKey
    from tenonry_worker_torch.state.plan import Decode, Pieces, Places, StatePlan, StateStep


class DecodePath(Protocol):
    """A batched path for decoding rows (`tenonry_worker_torch.fuse.mixers`)."""

    def __call__(self, x: torch.Tensor, states: Mapping[StateKey, torch.Tensor]) -> torch.Tensor:
        """`x` [R, hidden] → [R, hidden], one token per row; `states`, [R, …] each, are changed."""
        ...


class RowPath(ABC):
    """A `DecodePath` that finds the states of rows by itself."""

    @abstractmethod
    def __call__(self, x: torch.Tensor, states: Mapping[StateKey, torch.Tensor]) -> torch.Tensor:
        """Compute as `DecodePath`."""

    @abstractmethod
    def over_rows(
        self, x: torch.Tensor, states: Mapping[StateKey, torch.Tensor], rows: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute with `states` of all rows; `rows` i64[R]: the tokens' rows, None for the first R."""


class PromptPath(Protocol):
    """As `DecodePath`, for pieces of prompts."""

    def __call__(
        self, x: torch.Tensor, states: Mapping[StateKey, torch.Tensor] | None
    ) -> tuple[torch.Tensor, dict[StateKey, torch.Tensor]]:
        """Compute `x` [B, L, hidden] → [B, L, hidden], and the states after it. `states`: None for new rows."""
        ...


class PackedMixer:
    """Replaces a module's forward on the instance, with the same arguments and results.

    Without a plan the module runs unchanged. The first such run, over one prompt, shows its state.
    """

    def __init__(
        self, name: str, module: nn.Module, config: PretrainedConfig, step: StateStep
    ) -> None:
        self.name = name
        self.module = module
        self.config = config
        self.step = step
        self.kind = type(module).__name__
        self.forward = module.forward
        try:
            self.argument = CacheArgument(module)
        except ValueError as error:
            raise self.refusal(str(error)) from None
        self._state: LayerState | None = None
        self.hidden_size = 0  # of its input; known with its state
        self.takes_hidden_only = False  # no other argument per token
        self.path: DecodePath | None = None
        self.prompt_path: PromptPath | None = None
        self.continuation = Continuation.IN_PIECES
        self.fills_up = False  # new rows of several lengths may be computed together
        self.pools: dict[StateKey, torch.Tensor] = {}
        module.forward = self

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedMixer:
        """Share the state with a copied module: states are never copied."""
        return self

    def refusal(self, reason: str) -> ModelError:
        return ModelError(
            f"layer {self.name} ({self.kind}) keeps state that worker 'torch' cannot keep by request: {reason}"
        )

    @property
    def is_known(self) -> bool:
        """True if a prompt has been through the layer."""
        return self._state is not None

    @property
    def state(self) -> LayerState:
        """State of the layer; reading it before the first run is an error of the caller."""
        if self._state is None:
            raise RuntimeError(
                f"what {self.name} keeps is not known: a run over one prompt comes first"
            )
        return self._state

    def allocate(self, num_rows: int, device: torch.device) -> None:
        """Allocate room for the state of `num_rows` rows in total; existing rows keep theirs."""
        for key, shape in self.state.shapes.items():
            pool = room_for(num_rows, key, shape, device)
            earlier = self.pools.get(key)
            if earlier is not None:
                kept = min(num_rows, len(earlier))
                pool[:kept] = earlier[:kept]
            self.pools[key] = pool

    def copy_states(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy the state of rows `source` i64[N] to rows `target` i64[N]."""
        for pool in self.pools.values():
            pool.index_copy_(0, target, pool.index_select(0, source))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        plan = self.step.plan
        if plan is None:
            if self._state is None:
                return self._learn(arguments, named)
            return self.forward(*arguments, **named)
        return self._packed(plan, arguments, named)

    # ------------------------------------------------------------------ the first run

    def _learn(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        from transformers import Cache

        self._check_arguments(arguments, named)
        given = list(tensors_in((arguments, named)))
        self.hidden_size = int(given[0].shape[-1])
        self.takes_hidden_only = len(given) == 1
        layers = cache_layers(self.config)
        made = self.argument.call(self.forward, arguments, named, Cache(layers=layers))
        try:
            self._state = LayerState(layers)
        except ValueError as error:
            raise self.refusal(str(error)) from None
        if next(tensors_in(made)).is_meta:
            return made
        trial = Trial(self.module, self.state, self.argument, arguments, named)
        self.continuation = trial.result()
        if self.continuation is Continuation.WRONG:
            raise self.refusal("a prompt in pieces gives other results than in one")
        self.fills_up = self._takes_a_mask(arguments) and trial.fills_up()
        return made

    def _takes_a_mask(self, arguments: tuple[Any, ...]) -> bool:
        """Return True if a mask can be passed by its name, and the only other per-token input is hidden states."""
        parameters = list(inspect.signature(self.forward).parameters)
        return self.takes_hidden_only and MASK in parameters[len(arguments) :]

    def _check_arguments(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Raise for arguments of another shape than [1, length, …], which cannot be cut by token."""
        given = inspect.signature(self.forward).bind(*arguments, **named).arguments
        length = next(tensors_in(given)).shape[1]
        for name, value in given.items():
            if any(tuple(tensor.shape[:2]) != (1, length) for tensor in tensors_in(value)):
                raise self.refusal(f"its argument '{name}' is not one entry per token")

    # ------------------------------------------------------------------ a step

    def _packed(self, plan: StatePlan, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        out = Assembled(plan.num_tokens)
        if plan.decode is not None:
            made = self._decode(plan.decode, arguments, named)
            out.add(plan.decode.tokens, changed(made, lambda each: each.transpose(0, 1)))
        for pieces in plan.pieces:
            self._pieces(pieces, arguments, named, out)
        return out.whole()

    def _decode(self, decode: Decode, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """R rows of one token: the module's result, [R, 1, …]."""

        def taken(value: torch.Tensor) -> torch.Tensor:
            return one_token_each(value, decode.tokens)

        if self.path is not None:
            hidden = next(tensors_in((arguments, named)))
            return self._through_path(self.path, decode.rows, taken(hidden)[:, 0])[:, None]
        arguments, named = changed((arguments, named), taken)
        return self._continued(decode.rows, arguments, named)

    def _through_path(self, path: DecodePath, rows: Places, hidden: torch.Tensor) -> torch.Tensor:
        """`hidden` [R, H], one token of each of `rows` → [R, H]."""
        if isinstance(path, RowPath) and isinstance(rows, torch.Tensor):
            return path.over_rows(hidden, self.pools, rows)
        states = held(self.pools, rows)
        made = path(hidden, states)
        put_back(self.pools, rows, states, states)
        return made

    def over_step(self, hidden: torch.Tensor) -> torch.Tensor:
        """The step's tokens [T, H] → [T, H], for callers that have no other arguments."""
        plan = self.step.plan
        if plan is None:
            raise RuntimeError(f"{self.name} is called outside of a step")
        decode = plan.decode
        if self.path is None or decode is None or plan.pieces:
            made: torch.Tensor = self._packed(plan, (hidden[None],), {})
            return made[0]
        if decode.rows_in_order is not None and isinstance(self.path, RowPath):
            return self.path.over_rows(hidden, self.pools, decode.rows_in_order)
        if isinstance(decode.tokens, slice):
            return self._through_path(self.path, decode.rows, hidden)
        made = self._through_path(self.path, decode.rows, hidden.index_select(0, decode.tokens))
        return torch.empty_like(made).index_copy_(0, decode.tokens, made)

    def decoding(self) -> tuple[Mapping[StateKey, torch.Tensor], torch.Tensor | None] | None:
        """States, and the indices of the step's tokens (None: the first ones), if each token is that of a decoding row,
        in order; None for any other step.
        """
        plan = self.step.plan
        if plan is None or plan.pieces or plan.decode is None:
            return None
        rows = plan.decode.rows
        if plan.decode.rows_in_order is not None:
            return self.pools, plan.decode.rows_in_order
        if not isinstance(plan.decode.tokens, slice):
            return None
        if isinstance(rows, torch.Tensor):
            return self.pools, rows
        if rows.start == 0:
            return self.pools, None
        return held(self.pools, rows), None

    def _pieces(
        self, pieces: Pieces, arguments: tuple[Any, ...], named: dict[str, Any], out: Assembled
    ) -> None:
        """Tokens of B rows, [B, length, …]."""
        if pieces.has_state and self.continuation is Continuation.ONE_AT_A_TIME:
            self._token_by_token(pieces, arguments, named, out)
            return

        def cut(value: torch.Tensor) -> torch.Tensor:
            return stacked(value, pieces.places, pieces.length)

        def joined(value: torch.Tensor) -> torch.Tensor:
            flat = value.flatten(0, 1)
            if pieces.kept is not None:
                flat = flat.index_select(0, pieces.kept)
            return flat[None]

        if self.prompt_path is not None:
            hidden = next(tensors_in((arguments, named)))
            made = self._through_prompt_path(self.prompt_path, pieces, cut(hidden))
            out.add(pieces.tokens, joined(made))
            return
        arguments, named = changed((arguments, named), cut)
        if pieces.has_state:
            made = self._continued(pieces.rows, arguments, named)
        else:
            mask = pieces.mask()
            if mask is not None:
                named = named | {MASK: mask}
            made = self._begun(pieces.rows, arguments, named)
        out.add(pieces.tokens, changed(made, joined))

    def _through_prompt_path(
        self, path: PromptPath, pieces: Pieces, hidden: torch.Tensor
    ) -> torch.Tensor:
        """`hidden` [B, length, H] → the same shape."""
        before = held(self.pools, pieces.rows) if pieces.has_state else None
        mask = pieces.mask()
        if mask is not None:
            hidden = hidden * mask[..., None]
        made, states = path(hidden, before)
        put_back(self.pools, pieces.rows, states, before or {})
        return made

    def _token_by_token(
        self, pieces: Pieces, arguments: tuple[Any, ...], named: dict[str, Any], out: Assembled
    ) -> None:
        """Run code that accepts no more than one token on top of a state."""
        places = _numbered(pieces.places, self.pools).view(-1, pieces.length)
        for tokens in places.unbind(1):
            part, part_named = changed(
                (arguments, named), lambda each, at=tokens: stacked(each, at, 1)
            )
            made = self._continued(pieces.rows, part, part_named)
            out.add(tokens, changed(made, lambda each: each.transpose(0, 1)))

    def _begun(self, rows: Places, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run the module without a previous state; its final state becomes that of `rows`."""
        cache = self.state.empty()
        made = self.argument.call(self.forward, arguments, named, cache)
        for key, state in self.state.taken_from(cache):
            self.pools[key][rows] = state
        return made

    def _continued(self, rows: Places, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run the module over the state of `rows`, which it changes."""
        before = held(self.pools, rows)
        cache = self.state.holding(before)
        made = self.argument.call(self.forward, arguments, named, cache)
        states = dict(self.state.taken_from(cache))
        put_back(self.pools, rows, states, before)
        return made


def _numbered(places: Places, pools: dict[StateKey, torch.Tensor]) -> torch.Tensor:
    """The same as i64[N], where the states are."""
    if isinstance(places, torch.Tensor):
        return places
    device = next(iter(pools.values())).device
    return torch.arange(places.start, places.stop, device=device)
