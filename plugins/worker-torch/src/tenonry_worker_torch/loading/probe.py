"""The first run of a model: one short prompt, attention in plain torch. Worker process.

It records the arguments of every attention layer (heads, sizes, scaling, soft cap) and the visible keys of its mask.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError
from tenonry_torch_base.attention.indexer import bind_indexers
from tenonry_torch_base.attention.layer import (
    INTERFACE_NAME,
    LAYER_ATTRIBUTE,
    Probe,
    register_interface,
)
from tenonry_torch_base.attention.masks import reading_masks
from tenonry_torch_base.attention.rank_heads import rank_heads_of
from tenonry_torch_base.finite import NotFiniteError, is_finite, require_finite
from tenonry_torch_base.parallel.stage import stage_of
from tenonry_torch_base.text_part import set_attention, text_stack
from tenonry_worker_torch.loading.prompts import numbered_tokens
from tenonry_worker_torch.state.mixers import has_only_state
from tenonry_worker_torch.state.states import bind_states

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

    from tenonry_torch_base.attention.base import LayerSpec
    from tenonry_torch_base.attention.layer import Attended
    from tenonry_torch_base.attention.rank_heads import RankHeads
    from tenonry_torch_base.parallel.groups import Parallel
    from tenonry_worker_torch.state.states import States

logger = logging.getLogger("tenonry.worker")

PROMPT_LENGTH = 9


class ProbeResult:
    """Layers in order of their index, with their modules; a module that attends several times has several layers.

    `given` and `made`: the run itself, tokens or hidden states [length, hidden], and the logits of its last position,
    or the hidden states of all. `end`: what the text model returned. `attended`: arguments of each layer, by its name.
    `rank_heads`: this rank's heads of each layer whose module passes those of all ranks. `sinks` [num_heads] of each
    layer, if it has any.
    """

    __slots__ = (
        "attended",
        "end",
        "given",
        "made",
        "modules",
        "rank_heads",
        "sinks",
        "specs",
        "states",
    )

    def __init__(
        self, given: torch.Tensor, made: torch.Tensor, states: States | None = None
    ) -> None:
        self.given = given
        self.made = made
        self.states = states
        self.modules: list[torch.nn.Module] = []
        self.rank_heads: list[RankHeads | None] = []
        self.sinks: list[torch.Tensor | None] = []
        self.specs: list[LayerSpec] = []
        self.attended: dict[str, Attended] = {}
        self.end: Any = None

    def damage(self, model: PreTrainedModel, *, only_warns: bool = False) -> NotFiniteError | None:
        """An error that names the weights where logits or hidden states are NaN; with `only_warns` a log line."""
        try:
            self._require_finite(model)
        except NotFiniteError as error:
            if not only_warns:
                return error
            logger.warning("%s; continuing because of --skip-model-check", error)
        return None

    def _require_finite(self, model: PreTrainedModel) -> None:
        if self.given.is_floating_point() and not is_finite(self.given):
            raise NotFiniteError(
                f"{type(model).__name__}: the hidden states of an earlier pipeline stage are NaN"
            )
        require_finite(model, self.made)

    def add(self, spec: LayerSpec, module: torch.nn.Module, sinks: torch.Tensor | None) -> None:
        """A layer as its module calls attention."""
        heads = rank_heads_of(module, spec)
        if heads is not None:
            spec = heads.of(spec)
            sinks = None if sinks is None else sinks[heads.query]
        self.modules.append(module)
        self.rank_heads.append(heads)
        self.sinks.append(sinks)
        self.specs.append(spec)


@contextmanager
def blaming(damage: NotFiniteError | None) -> Iterator[None]:
    """Raise `damage` at the end, or instead of the error of a check of the damaged model."""
    try:
        yield
    except ModelError:
        if damage is None:
            raise
    if damage is not None:
        raise damage


def probe(
    model: PreTrainedModel, vocab_size: int, parallel: Parallel, max_model_len: int
) -> ProbeResult:
    """Run the model and describe its attention. Raises ModelError when a layer cannot be served."""
    link = parallel.link
    register_interface()
    if not has_only_state(model.config.get_text_config()):
        set_attention(model, INTERFACE_NAME)
    states = bind_states(model)
    has_indexers = bind_indexers(model)
    recorder = Probe({id(module): name for name, module in model.named_modules()})
    modules = list(model.modules())
    for module in modules:
        setattr(module, LAYER_ATTRIBUTE, recorder)
    prompt = numbered_tokens(PROMPT_LENGTH, vocab_size, model.device)
    ends: list[Any] = []
    hook = text_stack(model)[1].register_forward_hook(lambda _stack, _given, end: ends.append(end))
    try:
        with reading_masks(max_model_len):
            given = link.inputs(prompt)
            made = run_alone(model, given, as_served=True)
    except ModelError as error:
        raise ModelError(f"{type(model).__name__} cannot run on worker 'torch': {error}") from error
    finally:
        hook.remove()
        for module in modules:
            delattr(module, LAYER_ATTRIBUTE)
    if not link.is_last:
        link.send(made)
    if not recorder.specs and states is None:
        raise ModelError(f"{type(model).__name__} has no attention layer, so it has no KV cache")
    if not has_indexers and any(spec.indexed for spec in recorder.specs):
        raise ModelError(
            f"{type(model).__name__} chooses keys by a module that worker 'torch' does not find"
        )
    found = ProbeResult(given, made, states)
    found.attended = recorder.attended
    found.end = ends[-1] if ends else None
    _fill_in_order(found, recorder)
    if states is not None:
        states.check(found.modules)
    return found


def _fill_in_order(result: ProbeResult, recorder: Probe) -> None:
    """Fill in layers by index; layers of one index, and calls of one module, in order of execution, renumbered."""
    found = list(zip(recorder.specs, recorder.modules, recorder.sinks, strict=True))
    found.sort(key=lambda layer: layer[0].index)
    is_shared = len({spec.index for spec, _, _ in found}) < len(found)
    for order, (spec, module, sinks) in enumerate(found):
        if is_shared:
            spec.index = order
        result.add(spec, module, sinks)


@contextmanager
def named_failure(model: PreTrainedModel, num_ranks: int = 1) -> Iterator[None]:
    """Convert exceptions of the model's code on this worker to a ModelError that names the model."""
    architecture = type(model).__name__
    try:
        yield
    except (ModelError, torch.OutOfMemoryError):
        raise
    except torch.distributed.DistError:  # another rank is gone: the executor reports that
        raise
    except RuntimeError as error:
        if num_ranks == 1:
            raise _failed(architecture, error) from error
        # A plan may omit requirements of its family's options: the first run of cut layers reveals it.
        raise ModelError(
            f"{architecture} cannot run cut into {num_ranks} ranks as its tensor parallel plan says: {error}; use "
            "tensor_parallel_size=1"
        ) from error
    except Exception as error:
        raise _failed(architecture, error) from error


def _failed(architecture: str, error: Exception) -> ModelError:
    return ModelError(
        f"{architecture} cannot run on worker 'torch': its code fails on a flattened batch with {error!r}"
    )


def run_alone(
    model: PreTrainedModel, prompt: torch.Tensor, *, as_served: bool = False
) -> torch.Tensor:
    """Logits [length, vocabulary] of one prompt, through the attention function that is set.

    Positions are not passed, since those of some models do not begin at 0, and are looked up otherwise; `as_served`:
    they are passed, and only the last one's logits are requested.
    """
    positions = torch.arange(len(prompt), device=prompt.device) if as_served else None
    keep = None if positions is None else positions[-1:]
    with torch.inference_mode():
        return stage_of(model)(model, prompt, positions, keep)
