"""Methods of `AsyncLLM` and `LLM` whose work is done by call sets: names and types here, the calls there. Front end."""
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
    """Decorator of methods that pass their arguments to the method of the same name of a call set.

    They have types and a docstring, and no code.
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
    """The same method of `LLM`, whose call sets answer without a coroutine."""
    return method.__wrapped__  # type: ignore[attr-defined,no-any-return]  # set by functools.wraps


operations = method_of("operations")
adapters = method_of("adapters")
pooling = method_of("pooling")


class _Common:
    """Members of both kinds of front end. `calls`: the call sets in use, by name."""

    calls: CallSets
    io_processor: IOProcessor | None

    def get_tokenizer(self) -> Any:
        """The tokenizer. Raises ValueError if none is loaded."""
        if self.io_processor is None:
            raise ValueError("no tokenizer is loaded (skip_tokenizer_init or no io_processor)")
        return self.io_processor.get_tokenizer()


class Delegations(_Common):
    """Calls that reach every engine. Each raises EngineGenerateError with an engine's message, EngineDeadError, or
    Unsupported if the call set is not in use.
    """

    engine_calls: EngineCalls

    # ------------------------------------------------------------------ call set "operations"
    @operations
    async def sleep(self, level: int = 1) -> None:
        """Release memory until `wake_up`: level 1 that of the KV cache, level 2 that of the weights as well.

        Running requests wait, and are recomputed afterwards; caches are cleared.
        """

    @operations
    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Allocate the memory that `tags` name, "weights" or "kv_cache"; by default all."""

    @operations
    async def is_sleeping(self) -> bool:
        """Return True if every engine sleeps."""

    @operations
    async def update_weights(
        self, source: str, names: Sequence[str] | None = None, version: str = ""
    ) -> None:
        """Replace weights of every engine by those of a safetensors file, a folder of them, or shared memory.

        `source`: a path, or `shm:NAME`. `names`: the checkpoint's names of the tensors to read; by default all.
        `version` is part of every output of the new weights. Weights that do not fit are rejected and change nothing; a
        failure after that leaves engines that reject requests until an update succeeds.
        """

    @operations
    async def start_profile(self) -> None:
        """Begin a profile on every rank."""

    @operations
    async def stop_profile(self) -> None:
        """End and write it."""

    @operations
    async def save_sharded_state(
        self, path: str, pattern: str | None = None, max_size: int | None = None
    ) -> None:
        """Write each rank's weights into `path`, for `load_format=sharded`."""

    # ------------------------------------------------------------------ call set "adapters"
    @adapters
    async def add_lora(self, name: str, path: str) -> bool:
        """Load the adapter in a folder of peft, replacing one of the same name."""

    @adapters
    async def remove_lora(self, name: str) -> bool:
        """Unload an adapter; requests that run with it keep it."""

    @adapters
    async def list_loras(self) -> list[str]:
        """`name@digest` of each, as the first engine has them."""

    @adapters
    async def pin_lora(self, name: str) -> bool:
        """Keep it among those that are ready for a step."""

    # ------------------------------------------------------------------ call set "pooling"
    @pooling
    async def encode(
        self, prompt: Any, pooling_params: PoolingParams, request_id: str, **fields: Any
    ) -> PoolingOutput:
        """The vector or scores of a prompt; prompt, `fields` and errors are those of `generate`."""

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
        """Forget cached KV blocks; True if all were forgotten."""
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
        """Call a method of the workers' allow-list on every rank of every engine; one result per rank."""
        engines = await self.engine_calls.call(
            "call_workers", method, list(args), timeout, dict(kwargs or {})
        )
        return [result for ranks in engines for result in ranks]


class BlockingDelegations(_Common):
    """The same of one engine in this process; `generate` is rejected while it sleeps. Each raises what its engine
    raises, or Unsupported if the call set is not in use.
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
        """Load the adapter in a folder of peft; returns the `adapter` of `generate`."""

    @adapters
    def remove_lora(self, name: str) -> None:
        """Unload it."""

    @adapters
    def list_loras(self) -> list[Adapter]:
        """All that are loaded."""

    # ------------------------------------------------------------------ call set "pooling"
    @pooling
    def encode(
        self, prompts: Any, pooling_params: PoolingParams, **options: Any
    ) -> list[PoolingOutput]:
        """The vector or scores of each prompt, in order; `options` are those of `generate`.

        A request that fails raises EngineGenerateError, after the others ended.
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
        """The vectors of prompts; see PoolingParams."""

    @pooling
    def classify(self, prompts: Any, **options: Any) -> list[PoolingOutput]:
        """Scores of each class, in the order of the model's `id2label`."""

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

        By the head of a cross-encoder; with an embedding model, the cosine of two vectors. `truncate_prompt_tokens`: of
        a pair as in `AsyncLLM.score`, of a text for its vector as in its prompt.
        """

    # ------------------------------------------------------------------ the engine's own
    def reset_prefix_cache(self) -> bool:
        """Forget cached KV blocks; True if all were forgotten."""
        return self.engine_core.reset_prefix_cache()

    def reset_mm_cache(self) -> None:
        """Forget processed images and other files: here first, then in the workers."""
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
        """Call a method of the workers' allow-list; one result per rank."""
        return self.engine_core.call_workers(method, list(args), timeout, kwargs)
