"""Measures and starts the engine of one model. Blocking: in the main thread at the start, later in threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tenonry.client.start import resolve_front_end
from tenonry.errors import ConfigError, ModelError, TenonryError
from tenonry_openai_server.hosting.memory import ModelMemory, estimate, gib, with_planned_cache
from tenonry_openai_server.hosting.model import HostedModel
from tenonry_openai_server.hosting.settings import ModelSpec, of_model
from tenonry_openai_server.serving.front_end import make_front_end, own_engines

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM


class Starter(Protocol):
    """Starts engines. Both methods block."""

    def measure(self, model: HostedModel) -> ModelMemory:
        """Measure the memory of the model, with its files on this machine. Raises TenonryError."""

    def start(self, model: HostedModel) -> AsyncLLM:
        """The engine, ready, with `model.engines` set before it starts. Raises TenonryError."""


class EngineStarter:
    """Starts real engines within a budget of bytes."""

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def measure(self, model: HostedModel) -> ModelMemory:
        _, _, model.info = resolve_front_end(model.spec.config, launcher=True)
        return estimate(model.spec.config, model.info, self._budget)

    def start(self, model: HostedModel) -> AsyncLLM:
        config = model.spec.config
        if model.memory is not None:
            config = with_planned_cache(config, model.memory)
        model.engines = own_engines(config)
        engine = make_front_end(config, model.spec.settings, model.engines)
        try:
            model.state.choose_parsers(engine)
        except BaseException:
            engine.shutdown()
            raise
        return engine


def examined(spec: ModelSpec, budget: int) -> HostedModel:
    """The model with the facts of its small files, and its memory if its weights are on this machine.

    Raises ConfigError that names the model: settings or files that cannot be used.
    """
    config = spec.config
    is_here = True
    try:
        # A hub model is resolved without its weights, which the first request downloads.
        _, _, info = resolve_front_end(config.replaced(load_format="dummy"), launcher=True)
        model = HostedModel(spec, info)
        try:
            model.memory = estimate(config, info, budget)
        except ModelError:
            is_here = not info.commit
            if is_here:
                raise
    except TenonryError as error:
        raise of_model(spec.names[0], error) from None
    return model


def check_fits(models: list[HostedModel], budget: int) -> None:
    """Raise ConfigError with the numbers for a model that never fits next to the pinned ones."""
    pinned = sum(each.memory.total for each in models if each.memory and each.spec.is_pinned)
    if pinned > budget:
        names = ", ".join(each.name for each in models if each.spec.is_pinned)
        raise ConfigError(
            f"pin_model: {names} need {gib(pinned)} together, and the budget is {gib(budget)}; pin fewer models, lower "
            "their kv_cache_memory_bytes, or raise --model-memory-budget"
        )
    for model in models:
        if model.memory and not model.spec.is_pinned and pinned + model.memory.total > budget:
            raise ConfigError(too_large(model.name, model.memory, budget, pinned))


def too_large(name: str, memory: ModelMemory, budget: int, pinned: int) -> str:
    """Error text for a model that never fits."""
    beside = f", of which pinned models take {gib(pinned)}" if pinned else ""
    return (
        f"the model '{name}' needs {memory}, and the budget is {gib(budget)}{beside}; lower its kv_cache_memory_bytes, "
        "serve a smaller model, or raise --model-memory-budget"
    )
