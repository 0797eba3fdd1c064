"""EngineRecovery: reaction to engine failures. Front end, or the supervisor of several; the event loop.

`EngineEvents` delivers deaths: the single listener of owners of engines.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from tenonry.config import EngineConfig
from tenonry.errors import EngineDeadError, Unsupported
from tenonry.info import ModelInfo
from tenonry.interfaces.launcher import Death
from tenonry.interfaces.plugin import Plugin, PluginContext
from tenonry.messages import CoordinatorFacts, EngineCoreRequest
from tenonry.stats import StatRecord


class EngineEvents:
    """Events of engines: one listener, passed to `Engines.start`. All but `on_death` run on the event loop.

    A listener overrides what it needs.
    """

    def on_death(self, index: int, death: Death) -> None:
        """An engine, serving or spare, ended unexpectedly. From any thread, once for each."""

    async def on_join(self, fleet: Any, indexes: Sequence[int]) -> None:
        """Engines of an `EngineFleet` are ready and receive their indexes next; or a spare one is ready."""

    def on_switch(self, indexes: Sequence[int], coordinator: CoordinatorFacts | None) -> None:
        """Newcomers take these indexes; the streams of their predecessors move there."""

    async def on_started(self, indexes: Sequence[int]) -> None:
        """Engines were restarted or replaced; `on_admitted` follows once this returns."""

    def on_admitted(self, indexes: Sequence[int]) -> None:
        """New requests may go to these engines."""

    def on_given_up(self, index: int, reason: str) -> None:
        """A dead engine is not restarted."""

    def on_refused(self, indexes: Sequence[int]) -> None:
        """Newcomers that joined take no indexes, and are stopped."""

    def on_change(self, config: EngineConfig) -> None:
        """The engines run with this configuration."""

    async def drained(self, patience_s: float) -> int:
        """Wait until no request of this front end runs; returns the number still running after `patience_s`."""
        return 0

    def forget_media(self) -> None:
        """Drop processed images and other media of this front end."""

    async def divergence(self) -> Collection[str]:
        """Differences between running engines and ones just started, such as "engines sleep"."""
        return ()


class OpenStream(Protocol):
    """Unfinished request of a caller. `request`: the first of its engine requests."""

    request: EngineCoreRequest
    request_id: str

    @property
    def num_generated(self) -> int: ...


class OpenCompletion(Protocol):
    """Unfinished engine request. `delivered_ids`: its output tokens; `is_scheduled`: known to have run."""

    @property
    def stream(self) -> OpenStream: ...

    delivered_ids: array[int]
    is_scheduled: bool


class OpenStreams(Protocol):
    """The open requests of a front end; a supervisor has none."""

    def completion(self, handle: int) -> OpenCompletion | None:
        """The completion of this handle, if it has not ended."""

    def is_open(self, request_id: str) -> bool:
        """Return True until the stream of this id has ended."""

    def send(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Send the completions of one request to any engine, or keep them until one serves; they fail without one."""

    def fail(self, handles: Iterable[int], error: Exception) -> None:
        """Fail requests, and the other completions of the same streams."""


class EngineState(Protocol):
    """One engine, while it has its index."""

    @property
    def dead(self) -> Death | None: ...


class EngineClient(Protocol):
    """The connection to the engines. `recovers`: dead ones may be restarted; `awaited`: engines being restarted;
    `dead`: reason why no engine is left or awaited.
    """

    recovers: bool
    awaited: set[int]
    dead: str | None

    @property
    def engines(self) -> Mapping[int, EngineState]: ...

    def send_requests(self, index: int, requests: Sequence[EngineCoreRequest]) -> None:
        """Send requests to one engine. Raises EngineDeadError or RequestError."""


class RecoverableEngines(Protocol):
    """The engines of a front end; an `OwnedEngines` where this process started them. `plan` is a PluginPlan.

    Engines of another process may have a coroutine `replace(changes)`, with which their owner replaces them.
    """

    plan: Any
    model: ModelInfo

    @property
    def stats(self) -> StatRecorder: ...

    @property
    def client(self) -> EngineClient: ...


class StatRecorder(Protocol):
    """Passes records on to the stat loggers."""

    def record(self, record: StatRecord) -> None: ...


@dataclass(slots=True)
class RecoveryContext(PluginContext):
    """`lock`: held while engines are started, added or removed."""

    _: KW_ONLY
    engines: RecoverableEngines
    events: EngineEvents
    streams: OpenStreams
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class EngineRecovery(Plugin[RecoveryContext]):
    """Handles failed engines and their requests. One per front end, and one in a supervisor of several.

    Contract:
    - Only coroutines wait; an exception of `on_death` or `on_moved` ends the affected streams.
    - A class that `restarts` calls, for each dead engine, either `on_started` and `on_admitted` or `on_given_up` of
      the listener; until then it holds new requests that no other engine can serve.

    The base class is the kernel's default: the streams of a failed engine end with EngineDeadError.
    """

    @classmethod
    def restarts(cls, config: EngineConfig) -> bool:
        """Return True if dead engines are restarted."""
        return False

    @classmethod
    def alternatives(cls, config: EngineConfig, manager: Any) -> list[EngineConfig]:
        """Alternative configurations for restarts; `manager` is a PluginManager. Raises its errors."""
        return []

    def listen(self) -> None:
        """The event loop runs."""

    def on_death(
        self, index: int, death: Death, requests: Mapping[int, EngineCoreRequest]
    ) -> Collection[int]:
        """Handle the failure of an engine with these requests, by handle. Returns the handles that were resumed or
        ended; the streams of all others end with EngineDeadError.
        """
        return ()

    def on_moved(self, index: int, requests: Mapping[int, EngineCoreRequest]) -> Collection[int]:
        """Handle requests of an engine that was replaced; otherwise as `on_death`."""
        return ()

    async def on_started(self, indexes: Sequence[int]) -> None:
        """Handle restarted engines, which receive no new requests until this returns."""

    def hold(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Keep the completions of one request until an awaited engine is admitted or given up, then send those still
        open. Raises EngineDeadError.
        """
        raise EngineDeadError("no engine accepts requests until a failed one has restarted")

    def on_admitted(self, indexes: Sequence[int]) -> None:
        """New requests may go to these engines."""

    def on_given_up(self, index: int, reason: str) -> None:
        """This engine is not restarted."""

    async def on_call(self, method: str, args: Sequence[Any]) -> None:
        """Record a call that changed all serving engines permanently; others may have to repeat it."""

    def on_change(self, config: EngineConfig) -> None:
        """The engines run with this configuration."""

    async def replace(self, changes: Mapping[str, Any], size: int | None = None) -> None:
        """Replace the running engines by ones with these changes; the running ones continue if this raises.

        `size`: new number of engines that step together; those beyond it run no requests. `lock` is held.
        """
        raise Unsupported(
            "engines can be replaced while they run only with: pip install tenonry-recovery"
        )

    def shutdown(self) -> None:
        """Stop what this started. Idempotent."""
