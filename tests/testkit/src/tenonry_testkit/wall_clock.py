"""Detects reads of clocks other than the passed one. Test process."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from tenonry_testkit.rules import NO_WALL_CLOCK, RuleBroken

CLOCKS = tuple(
    getattr(time, name)
    for name in (
        "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
        "process_time_ns", "thread_time", "thread_time_ns", "localtime", "gmtime", "ctime", "sleep",
    )
)  # fmt: skip


# ray replaces the record factory of logging when it is imported
MAY_READ_CLOCKS = sys.stdlib_module_names | {"hypothesis", "pytest", "_pytest", "pluggy", "ray"}


class WallClockTrap:
    """Makes clocks raise during `watched()` for every caller except the standard library and the test runner.

    Clocks that modules of `packages` imported by name are replaced, too; `close` restores all of them.
    """

    def __init__(self, packages: Iterable[str]) -> None:
        self._armed = False
        self._undo = contextlib.ExitStack()
        replaced: dict[Any, Any] = {clock: self._trap(clock) for clock in CLOCKS}
        replaced[dt.datetime] = self._trapped_datetime()
        for module in [time, dt, *_modules_of(set(packages))]:
            for name, value in list(vars(module).items()):
                with contextlib.suppress(TypeError):  # unhashable values are no clocks
                    if value in replaced:
                        self._replace(module, name, value, replaced[value])

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Make clocks raise within the block."""
        before = self._armed
        self._armed = True
        try:
            yield
        finally:
            self._armed = before

    def close(self) -> None:
        """Restore every clock."""
        self._undo.close()

    def _replace(self, module: ModuleType, name: str, old: Any, new: Any) -> None:
        setattr(module, name, new)
        self._undo.callback(setattr, module, name, old)

    def check(self, name: str, frame: Any) -> None:
        """Raise RuleBroken if the trap is armed and the module of `frame` may not read clocks (see MAY_READ_CLOCKS)."""
        caller = frame.f_globals.get("__name__", "")
        if self._armed and caller.partition(".")[0] not in MAY_READ_CLOCKS:
            raise RuleBroken(NO_WALL_CLOCK, f"{caller} called {name}() in line {frame.f_lineno}")

    def _trap(self, clock: Callable[..., Any]) -> Callable[..., Any]:
        def trapped(*args: Any) -> Any:
            self.check(f"time.{clock.__name__}", sys._getframe(1))
            return clock(*args)

        return trapped

    def _trapped_datetime(self) -> type[dt.datetime]:
        trap = self

        class Trapped(dt.datetime):
            @classmethod
            def now(cls, tz: dt.tzinfo | None = None) -> Any:
                trap.check("datetime.now", sys._getframe(1))
                return super().now(tz)

            @classmethod
            def today(cls) -> Any:
                trap.check("datetime.today", sys._getframe(1))
                return super().today()

        return Trapped


def _modules_of(packages: set[str]) -> list[ModuleType]:
    return [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in packages and isinstance(module, ModuleType)
    ]
