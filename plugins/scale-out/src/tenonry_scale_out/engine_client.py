"""`EngineClient`: the interface of `AsyncLLM`, for type hints and for mocks. Front end; imports no engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tenonry.config import EngineConfig
from tenonry.errors import EngineDeadError
from tenonry.info import EngineInfo, ModelInfo
from tenonry.interfaces.io_processor import IOProcessor
from tenonry.outputs import PoolingOutput, RequestOutput
from tenonry.sampling_params import PoolingParams, SamplingParams

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

    def _held_by_mypy(engine: AsyncLLM) -> EngineClient:
        return engine


@runtime_checkable
class EngineClient(Protocol):
    """Client of one or several engines. `AsyncLLM` is one, whose docstrings describe each member.

    Code that takes an `EngineClient` accepts anything that has these members, without a base class:

        def route(engine: EngineClient) -> None: ...
        route(create_autospec(EngineClient, instance=True))
    """

    model: ModelInfo
    io_processor: IOProcessor | None

    # ------------------------------------------------------------------ requests
    def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **fields: Any
    ) -> AsyncIterator[RequestOutput]:
        """Yields the outputs of a request, the last one finished."""
        ...

    async def encode(
        self, prompt: Any, pooling_params: PoolingParams, request_id: str, **fields: Any
    ) -> PoolingOutput:
        """Returns the vector or the scores of a prompt."""
        ...

    async def score(
        self,
        text_1: str,
        text_2: str,
        request_id: str,
        *,
        truncate_prompt_tokens: int | None = None,
        **fields: Any,
    ) -> PoolingOutput:
        """Returns the score of a pair of texts."""
        ...

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends requests; their streams finish with reason "abort"."""

    def get_tokenizer(self) -> Any:
        """Returns the tokenizer. Raises ValueError if none is loaded."""

    # ------------------------------------------------------------------ pausing
    @property
    def is_paused(self) -> bool:
        """True while new requests are held back."""
        ...

    async def pause_generation(
        self,
        *,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
        keep: bool = False,
    ) -> None:
        """Holds new requests back; running ones are aborted, waited for or kept."""

    async def resume_generation(self) -> None:
        """Continues requests that were held back."""

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the word that callers know
        """Refuses new requests and waits for the running ones."""
        ...

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300.0) -> None:
        """Waits until no engine has work. Raises TimeoutError."""

    # ------------------------------------------------------------------ engines
    async def sleep(self, level: int = 1) -> None:
        """Releases memory until `wake_up`."""

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Allocates memory again."""

    async def is_sleeping(self) -> bool:
        """Returns True if every engine sleeps."""
        ...

    async def update_weights(
        self, source: str, names: Sequence[str] | None = None, version: str = ""
    ) -> None:
        """Replaces weights of every engine."""

    async def save_sharded_state(
        self, path: str, pattern: str | None = None, max_size: int | None = None
    ) -> None:
        """Writes each rank's weights."""

    async def add_lora(self, name: str, path: str) -> bool:
        """Loads an adapter."""
        ...

    async def remove_lora(self, name: str) -> bool:
        """Unloads an adapter."""
        ...

    async def list_loras(self) -> list[str]:
        """Returns `name@digest` of each adapter."""
        ...

    async def pin_lora(self, name: str) -> bool:
        """Keeps an adapter loaded."""
        ...

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forgets cached KV blocks."""
        ...

    async def reset_mm_cache(self) -> None:
        """Forgets processed images and other files."""

    async def collective_rpc(
        self,
        method: str,
        args: Sequence[Any] = (),
        timeout: float | None = None,  # noqa: ASYNC109 - vLLM's name
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a worker method on every rank of every engine."""
        ...

    async def scale(self, size: int, drain_timeout: float = 300.0) -> None:
        """Changes the number of engines."""

    async def replace_engines(self, **changes: Any) -> None:
        """Replaces every engine by one with other settings."""

    async def start_profile(self) -> None:
        """Begins a profile on every rank."""

    async def stop_profile(self) -> None:
        """Ends it and writes it."""

    @property
    def calls(self) -> Mapping[str, Any]:
        """Call sets by name."""
        ...

    # ------------------------------------------------------------------ facts, health
    @property
    def config(self) -> EngineConfig:
        """Configuration of the engines."""
        ...

    @property
    def info(self) -> EngineInfo:
        """Facts about the engines."""
        ...

    @property
    def num_unfinished_requests(self) -> int:
        """Requests that have not ended."""
        ...

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """Returns "generate", or tasks of PoolingParams."""
        ...

    async def is_tracing_enabled(self) -> bool:
        """Returns True if requests join their callers' traces."""
        ...

    async def do_log_stats(self) -> None:
        """Makes the stat loggers report."""

    async def check_health(self) -> None:
        """Raises EngineDeadError if an engine is not healthy."""

    @property
    def errored(self) -> bool:
        """True if no request can be served any more."""
        ...

    @property
    def is_stopped(self) -> bool:
        """The same."""
        ...

    @property
    def is_running(self) -> bool:
        """True while outputs are received."""
        ...

    @property
    def dead_error(self) -> EngineDeadError:
        """Exception that names why no request can be served."""
        ...

    def shutdown(self, timeout: float = 5.0) -> None:
        """Stops the engines."""
