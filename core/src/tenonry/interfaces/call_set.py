"""CallSet: operations on running engines, by name. Front ends and engine processes.

`AsyncLLM.calls["mine"]` is the front-end half of the call set `mine`, `LLM.calls["mine"]` its blocking half. The
front-end half calls methods of the engine half in every engine, and merges the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tenonry.interfaces.plugin import Plugin, PluginContext


class Engine(Protocol):
    """An engine, for its engine halves.

    `index`: its rank. `held`: reason why no step runs, or "". `is_away`: without memory for any step, including those
    of lockstep. `refusal`: reason why requests are rejected, or "". `steps_together`: it steps with others.
    `weight_version`: part of every output. `scheduler`: a set that observes it may replace it by a Scheduler that
    forwards every call, when its engine half is built.
    """

    index: int
    held: str
    is_away: bool
    refusal: str
    weight_version: str
    steps_together: bool
    executor: Any
    plan: Any
    kv_connector: Any
    scheduler: Any

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool: ...

    def call_workers(self, *args: Any, **options: Any) -> list[Any]: ...

    def collect_all(self) -> None: ...


class EngineCalls(Protocol):
    """Calls of the engine halves of one set. Raises EngineGenerateError (the engine's message) or EngineDeadError."""

    async def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method on every engine that serves; returns results in engine order."""

    async def change(self, method: str, *args: Any) -> list[Any]:
        """As `call`, for a lasting change of state: standby engines apply it, too."""

    async def call_engine(self, index: int, method: str, *args: Any) -> Any:
        """Call a method on one engine, such as one that joins."""


@dataclass
class FrontEnd:
    """The front end of a front-end half.

    `llm`: the AsyncLLM, weakly referenced. `record(method, *values)` submits to the stat loggers. `divergence`:
    differences between running and newly started engines, one phrase each. Unless it is empty, no engine is replaced,
    and dead ones are not restarted.
    """

    llm: Any
    calls: EngineCalls
    record: Callable[..., None]
    divergence: set[str]


class FrontEndHalf:
    """Public methods are the calls; they are coroutines of the front end's event loop."""

    async def on_join(self, engines: Sequence[int]) -> None:
        """Bring joining or returning engines up to date, by `EngineCalls.call_engine`, before they receive requests.

        If it raises, they do not join.
        """


class CallSet(Plugin[PluginContext]):
    """Calls beyond `generate`, under a name; built once in each process that uses them.

    `name`: the key in `calls`; the entry point's name by default. Contract:
    - Arguments and results of an engine half are plain msgpack values; a parameter annotated with a msgspec Struct
      receives one. Its public methods are the only ones that a front end can call.
    - A method of an engine half runs between two steps and delays the next one.
    - Nothing runs per token or per request.
    """

    name: ClassVar[str] = ""

    def engine_half(self, engine: Engine) -> object | None:
        """Return the object whose public methods front ends may call; None if the set needs none."""

    def front_end_half(self, front_end: FrontEnd) -> FrontEndHalf:
        """Return the object for `AsyncLLM.calls[name]`."""
        return FrontEndHalf()

    def blocking_half(self, llm: Any, engine: Engine) -> Any:
        """Return the object for `LLM.calls[name]`; `llm` is weakly referenced. By default the engine half itself."""
        return self.engine_half(engine)
