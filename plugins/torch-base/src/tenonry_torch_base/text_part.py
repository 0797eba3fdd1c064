"""Text part of a multimodal model: its towers are removed before any weight is read. Worker process.

The modules that text passes through are found by a run: a copy without storage runs over a few token ids, and modules
that neither ran nor lent a parameter are removed. If such a run cannot finish without values (routers of experts depend
on them), everything inside the text model counts as used.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tenonry.errors import ModelError
from tenonry_torch_base.meta_run import MetaRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from transformers import PretrainedConfig, PreTrainedModel

SHAPES_ONLY = "tenonry_shapes"
PROMPT_LENGTH = 4
LAYERS_TO_RUN = 2


class LeftOut(nn.Module):
    """Placeholder for a removed tower: keeps its plain attributes, which wrappers read, and cannot be run."""

    place: torch.Tensor

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.kind = type(tower).__name__
        # Goes where the model goes, for wrappers that put ids where their tower is.
        self.register_buffer("place", torch.empty(0), persistent=False)
        for name, value in vars(tower).items():
            if not name.startswith("_") and isinstance(value, str | int | float | None):
                setattr(self, name, value)

    @property
    def device(self) -> torch.device:
        return self.place.device

    @property
    def dtype(self) -> torch.dtype:
        return self.place.dtype

    def forward(self, *_: Any, **__: Any) -> None:
        raise ModelError(f"{self.kind} is left out: only the text part of this model is loaded")


def text_part(model: PreTrainedModel) -> PreTrainedModel:
    """Return `model`, without storage, unchanged if all of it is for text; else one of a class without its towers.

    Raises ModelError when the model cannot run on text alone.
    """
    if not model.config.sub_configs:
        return model
    config = copy.deepcopy(model.config)
    towers = unused_by_text(model)
    whole_class = type(model)
    with torch.device("meta"):
        return text_class(whole_class, towers)(config) if towers else whole_class(config)


def text_stack(model: PreTrainedModel) -> tuple[str, PreTrainedModel]:
    """Name and module with the text model's embedding, layers and norm; ("", …) for `model` itself.

    It corresponds to `get_text_config()`: plans in it name children of this module.
    """
    from transformers import PreTrainedModel

    stack = model.base_model
    if model.config.get_text_config() is not model.config:
        stack = model.get_decoder().base_model
    if stack is model:  # its class has another name for the base model than its prefix
        inner = [child for child in model.children() if isinstance(child, PreTrainedModel)]
        stack = inner[0] if len(inner) == 1 else model
    return next(name for name, part in model.named_modules() if part is stack), stack


def set_attention(model: PreTrainedModel, name: str) -> None:
    """Set the attention function `name` in the text part; removed towers have none."""
    config = model.config
    text = config.get_text_config()
    chosen = {key: name for key in config.sub_configs if getattr(config, key, None) is text}
    model.set_attn_implementation({"": name} | chosen if config.sub_configs else name)


def text_class(model_class: type[PreTrainedModel], towers: Iterable[str]) -> type[PreTrainedModel]:
    """Subclass of `model_class` whose objects omit the `towers`. It has the same name and module."""

    def build(self: Any, config: PretrainedConfig, *arguments: Any, **options: Any) -> None:
        model_class.__init__(self, config, *arguments, **options)
        leave_out(self, towers)

    body = {"__init__": build, "__module__": model_class.__module__, "__doc__": model_class.__doc__}
    return type(model_class.__name__, (model_class,), body)


def leave_out(model: PreTrainedModel, towers: Iterable[str]) -> None:
    """Replace modules by `LeftOut`, and forget weights that were tied to theirs."""
    for name in towers:
        owner, _, child = name.rpartition(".")
        model.get_submodule(owner).add_module(child, LeftOut(model.get_submodule(name)))
    for part in model.modules():
        tied = getattr(part, "all_tied_weights_keys", None)
        if tied:
            names = {name for name, _ in part.named_parameters(remove_duplicate=False)}
            part.all_tied_weights_keys = {
                target: source
                for target, source in tied.items()
                if target in names and source in names
            }


def unused_by_text(model: PreTrainedModel) -> list[str]:
    """Names of the largest modules that a run over token ids does not use. `model` cannot be used after it.

    Raises ModelError when the model does not run on token ids alone.
    """
    model.eval()
    stacks = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    for stack in stacks:
        del stack[LAYERS_TO_RUN:]  # later ones are alike, and every one costs time
    used = _Used(model)
    used.run()
    return list(used.unused_below(model, ""))


class _Used:
    """One run of a model without storage, and the modules it passed through."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._ran: set[int] = set()
        self._lent: set[int] = set()

    def run(self) -> None:
        """Raises ModelError when the run ends before the text model is reached."""
        _register_shapes()
        set_attention(self.model, SHAPES_ONLY)
        hooks = [
            module.register_forward_pre_hook(lambda module, _: self._ran.add(id(module)))
            for module in self.model.modules()
        ]
        self.model.set_experts_implementation(
            "batched_mm"
        )  # reads no value that depends on weights
        ids = torch.arange(1, PROMPT_LENGTH + 1)[None]
        try:
            with torch.no_grad(), MetaRun(), torch.device("meta"), _Lending(self._lent):
                self.model(input_ids=ids, use_cache=True)
        except Exception as error:  # any class, since it is the model's code
            if not self._has_reached_the_decoder():
                reason = " ".join(str(error).split())[:200]
                raise ModelError(
                    f"{type(self.model).__name__} cannot run on text alone: {type(error).__name__}: {reason}"
                ) from error
            self._count_whole_decoder()
        finally:
            for hook in hooks:
                hook.remove()

    def unused_below(self, module: nn.Module, prefix: str) -> Iterator[str]:
        """Names of modules with weights below `module` that the run did not use."""
        for child_name, child in module.named_children():
            name = prefix + child_name
            if not self._is_used(child):
                if any(True for _ in child.parameters()):
                    yield name
            elif not isinstance(child, nn.ModuleList):  # a stack of layers stays whole
                yield from self.unused_below(child, f"{name}.")

    def _is_used(self, module: nn.Module) -> bool:
        return any(id(part) in self._ran for part in module.modules()) or any(
            id(weight) in self._lent for weight in module.parameters()
        )

    def _decoder(self) -> nn.Module:
        decoder: nn.Module = self.model.get_decoder()
        return decoder

    def _has_reached_the_decoder(self) -> bool:
        return id(self._decoder()) in self._ran and len(self._ran) > 1

    def _count_whole_decoder(self) -> None:
        for part in (self._decoder(), self.model.get_output_embeddings()):
            if part is not None:
                self._ran.update(id(module) for module in part.modules())


class _Lending(TorchFunctionMode):
    """Records parameters passed to torch's functions, even without a call of their module."""

    def __init__(self, lent: set[int]) -> None:
        super().__init__()
        self._lent = lent

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") != "__get__":  # data types and devices are irrelevant
            given = (*args, *kwargs.values())
            self._lent.update(id(value) for value in given if isinstance(value, nn.Parameter))
        return func(*args, **kwargs)


def _register_shapes() -> None:
    """Attention that only has the right shape, and no masks: values do not exist here."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(SHAPES_ONLY, _attention_of_that_shape)
    AttentionMaskInterface.register(SHAPES_ONLY, lambda *_, **__: None)


def _attention_of_that_shape(
    _module: nn.Module,
    query: torch.Tensor,
    _key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, None]:
    """`query` [1, num_heads, T, size], `value` [1, num_kv_heads, T, value_size] → [1, T, num_heads, value_size]."""
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3]), None
