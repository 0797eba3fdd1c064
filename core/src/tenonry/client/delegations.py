"""Methods of `AsyncLLM` and `LLM` that delegate to call sets: names and types only. Front end."""
# mypy: disable-error-code="empty-body"

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from tenonry.outputs import PoolingOutput
from tenonry.sampling_params import PoolingParams

if TYPE_CHECKING:
    from tenonry.client.call_sets import CallSets
    from tenonry.client.engine_calls import EngineCalls
    from tenonry.engine.core import EngineCore
    from tenonry.interfaces.io_processor import IOProcessor
    from tenonry.step import Adapter

P = ParamSpec("P")
R = TypeVar("R")
Method = TypeVar("Method", bound=Callable[..., Any])
Texts = str | Sequence[str]


def method_of(call_set: str) -> Callable[[Method], Method]:
    """Return a decorator for methods without code, with types and a docstring, that pass their arguments to the method
    of the same name of a call set.
    """

    def decorate(declared: Any) -> Any:
        @functools.wraps(declared)
        def call(self: _Common, *args: Any, **kwargs: Any) -> Any:
            return getattr(self.calls[call_set], declared.__name__)(*args, **kwargs)

        @functools.wraps(call)
        async def call_and_wait(*args: Any, **kwargs: Any) -> Any:
            return await call(*args, **kwargs)

        return call_and_wait if inspect.iscoroutinefunction(declared) else call

    return decorate


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return the same method for `LLM`, whose call sets are synchronous."""
    return method.__wrapped__  # type: ignore[attr-defined,no-any-return]  # set by functools.wraps


operations = method_of("operations")
adapters = method_of("adapters")
pooling = method_of("pooling")


class _Common:
    """Members of both kinds of front end. `calls`: active call sets by name."""

    calls: CallSets
    io_processor: IOProcessor | None

    def get_tokenizer(self) -> Any:
        """Return the tokenizer. Raises ValueError if none is loaded."""
        if self.io_processor is None:
            raise ValueError("no tokenizer is loaded (skip_tokenizer_init or no io_processor)")
        return self.io_processor.get_tokenizer()


class Delegations(_Common):
    """Calls that reach every engine. Each raises EngineGenerateError with an engine's message, EngineDeadError, or
    Unsupported for an unused call set.
    """

    engine_calls: EngineCalls

    # ------------------------------------------------------------------ call set "operations"
    @operations
    async def sleep(self, level: int = 1) -> None:
        """Release memory until `wake_up`: level 1 the KV cache, level 2 the weights as well.

        Running requests wait and are recomputed afterwards; caches are cleared.
        """

    @operations
    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Allocate the memory named by `tags`, "weights" or "kv_cache"; by default both."""

    @operations
    async def is_sleeping(self) -> bool:
        """Return True if every engine sleeps."""

    @operations
    async def update_weights(
        self, source: str, names: Sequence[str] | None = None, version: str = ""
    ) -> None:
        """Replace weights of every engine by those of a safetensors file, a folder of them, or shared memory.

        `source`: a path, or `shm:NAME`. `names`: checkpoint names of the tensors to read; by default all. `version`:
        reported in every output of the new weights. Weights of a different shape are rejected without effect; after any
        later failure engines reject requests until an update succeeds.
        """

    @operations
    async def start_profile(self) -> None:
        """Start a profile on every rank."""

    @operations
    async def stop_profile(self) -> None:
        """Stop the profile and write it."""

    @operations
    async def save_sharded_state(
        self, path: str, pattern: str | None = None, max_size: int | None = None
    ) -> None:
        """Write each rank's weights into `path`, for `load_format=sharded`."""

    # ------------------------------------------------------------------ call set "adapters"
    @adapters
    async def add_lora(self, name: str, path: str) -> bool:
        """Load a peft adapter from a folder, replacing one of the same name."""

    @adapters
    async def remove_lora(self, name: str) -> bool:
        """Unload an adapter; running requests keep it."""

    @adapters
    async def list_loras(self) -> list[str]:
        """`name@digest` of each LoRA, as loaded by the first engine."""

    @adapters
    async def pin_lora(self, name: str) -> bool:
        """Keep a LoRA ready for immediate use."""

    # ------------------------------------------------------------------ call set "pooling"
    @pooling
    async def encode(
        self, prompt: Any, pooling_params: PoolingParams, request_id: str, **fields: Any
    ) -> PoolingOutput:
        """Compute the vector or scores of a prompt; prompt, `fields` and errors as in `generate`."""

    @pooling
    async def score(
        self,
        text_1: str,
        text_2: str,
        request_id: str,
        *,
        truncate_prompt_tokens: int | None = None,
        **fields: Any,
    ) -> PoolingOutput:
        """Relevance of two texts to each other, `data` f32[1], by the head of a cross-encoder.

        `truncate_prompt_tokens`: maximum tokens of the pair, cut from the longer text; -1 for all that fits.
        """

    # ------------------------------------------------------------------ the engine's own
    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Clear cached KV blocks; True if all were cleared."""
        return all(
            await self.engine_calls.call(
                "reset_prefix_cache", reset_running_requests, reset_connector
            )
        )

    async def collective_rpc(
        self,
        method: str,
        args: Sequence[Any] = (),
        timeout: float | None = None,  # noqa: ASYNC109 - vLLM's name
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of the workers' allow-list on every rank of every engine; returns one result per rank."""
        engines = await self.engine_calls.call(
            "call_workers", method, list(args), timeout, dict(kwargs or {})
        )
        return [result for ranks in engines for result in ranks]


class BlockingDelegations(_Common):
    """Calls of the engine in this process; `generate` is rejected while it sleeps. Each raises the engine's error, or
    Unsupported for an unused call set.
    """

    engine_core: EngineCore

    # ------------------------------------------------------------------ call set "operations"
    sleep = blocking(Delegations.sleep)
    wake_up = blocking(Delegations.wake_up)
    is_sleeping = blocking(Delegations.is_sleeping)
    update_weights = blocking(Delegations.update_weights)
    start_profile = blocking(Delegations.start_profile)
    stop_profile = blocking(Delegations.stop_profile)
    save_sharded_state = blocking(Delegations.save_sharded_state)

    # ------------------------------------------------------------------ call set "adapters"
    @adapters
    def add_lora(self, name: str, path: str) -> Adapter:
        """Load a peft adapter from a folder; returns the `adapter` for `generate`."""

    @adapters
    def remove_lora(self, name: str) -> None:
        """Unload a LoRA."""

    @adapters
    def list_loras(self) -> list[Adapter]:
        """All loaded LoRAs."""

    # ------------------------------------------------------------------ call set "pooling"
    @pooling
    def encode(
        self, prompts: Any, pooling_params: PoolingParams, **options: Any
    ) -> list[PoolingOutput]:
        """Compute the vector or scores of each prompt, in order; `options` as in `generate`.

        A failed request raises EngineGenerateError after the others ended.
        """

    @pooling
    def embed(
        self,
        prompts: Any,
        *,
        normalize: bool | None = None,
        dimensions: int | None = None,
        **options: Any,
    ) -> list[PoolingOutput]:
        """Compute embedding vectors; see PoolingParams."""

    @pooling
    def classify(self, prompts: Any, **options: Any) -> list[PoolingOutput]:
        """Compute class scores, in the order of the model's `id2label`."""

    @pooling
    def score(
        self,
        text_1: Texts,
        text_2: Texts,
        *,
        truncate_prompt_tokens: int | None = None,
        **options: Any,
    ) -> list[float]:
        """Relevance of texts: one first text with each second one, or pairs of two lists.

        Scored by the head of a cross-encoder, or as cosine similarity of embedding vectors. `truncate_prompt_tokens`:
        for a pair as in `AsyncLLM.score`, for a vector as in its prompt.
        """

    # ------------------------------------------------------------------ the engine's own
    def reset_prefix_cache(self) -> bool:
        """Clear cached KV blocks; True if all were cleared."""
        return self.engine_core.reset_prefix_cache()

    def reset_mm_cache(self) -> None:
        """Drop processed images and other media: first in the front end, then in the workers."""
        if self.io_processor is not None:
            self.io_processor.reset_mm_cache()
        self.engine_core.reset_mm_cache()

    def collective_rpc(
        self,
        method: str,
        args: Sequence[Any] = (),
        timeout: float | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of the workers' allow-list; returns one result per rank."""
        return self.engine_core.call_workers(method, list(args), timeout, kwargs)
