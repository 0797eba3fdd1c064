"""Launcher: starts engine processes. Front end or supervisor; `process` on this node, `ray` on many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from tenonry.errors import Unsupported
from tenonry.interfaces.plugin import Plugin, PluginContext

FIRST_STANDBY = 4096  # lowest index of spare engines; above those of all serving ones


def engine_name(index: int) -> str:
    """Return the name of an engine's process."""
    if index >= FIRST_STANDBY:
        return f"standby {index - FIRST_STANDBY}"
    return f"engine {index}"


class Death(msgspec.Struct, frozen=True):
    """End of an engine. `began_step`: False if no request can be the cause; `lost_node`: name of the lost node, whose
    engines died with it, or empty; `exit_code`: exit code of its process if that ended first (negative: the signal);
    `epoch`: epoch of the engine, which distinguishes it from others of its index, or 0.
    """

    reason: str
    began_step: bool = True
    lost_node: str = ""
    exit_code: int | None = None
    epoch: int = 0

    def __str__(self) -> str:
        return self.reason if self.began_step else f"{self.reason}, before its first step"


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine to start: its index, and the input of its process as text.

    `curve_keys` is the text of the run's keys (`CurveKeys.encode`) when the addresses are TCP; it is a secret.
    """

    engine_index: int
    local_rank: int
    handshake_address: str
    config_text: str
    plan_text: str
    model_text: str
    local: bool = True
    curve_keys: str = ""


@dataclass(slots=True)
class LauncherContext(PluginContext):
    """Inputs of a launcher."""


class Launcher(Plugin[LauncherContext], ABC):
    """Starts engine processes and owns them. No child outlives the process that launched it.

    Engines are named by `engine_name`. The launcher sets the visible devices in the
    environment of each process. Methods may be called from any thread, one at a time.

    `is_local`: all engines run on this node. `supports_replacement`: an engine may take the name of another one
    (`rename`), as standbys and replacements do.
    """

    is_local: ClassVar[bool] = True
    supports_replacement: ClassVar[bool] = False

    def host(self) -> str | None:
        """Address of this node for its engines, over TCP with CURVE; None if all are on this node
        and can use Unix sockets. Called once, before the first `start`.
        """
        return None

    def prepare(self, engine: EngineSpec) -> None:
        """Start common preparation for engines like this one; followed by the first `start`, or `shutdown`.

        Its `handshake_address` is empty. Returns immediately. Raises the same errors as `start`.
        """

    @abstractmethod
    def start(self, engines: list[EngineSpec]) -> None:
        """Start engines; if one fails to start, the others of the list are stopped. Returns before they are ready.

        Called again, with engines of other indexes, when the instance grows.
        """

    @abstractmethod
    def stop(self, names: Sequence[str], timeout: float = 5.0) -> None:
        """Stop some engines permanently, as `shutdown` does, without callbacks for them. Unknown names are ignored."""

    def rename(self, name: str, new: str) -> None:
        """Rename a process; an unknown name is ignored. Only with `supports_replacement`."""
        raise Unsupported(f"this launcher has no standby engines: {name} cannot become {new}")

    def has_stepped(self, name: str) -> bool:
        """False for an engine that ended before its first step; True if unknown."""
        return True

    @abstractmethod
    def finished(self) -> dict[str, int]:
        """Ended engines: name → exit code (negative: the signal)."""

    @abstractmethod
    def on_exit(self, callback: Callable[[str, int, int], None]) -> None:
        """Call `callback(name, pid, exit code)` once per ended engine, from another thread."""

    @abstractmethod
    def pids(self) -> dict[str, int]:
        """Running engines: name → process id."""

    @abstractmethod
    def shutdown(self, timeout: float = 5.0) -> None:
        """Terminate, wait up to the shared deadline, kill the remaining process trees. Idempotent."""
