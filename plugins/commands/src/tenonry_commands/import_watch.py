"""Side effects of plugins' modules while they are imported, each with the file and line that caused it.

A start reports them as warnings, since its own import of a plugin is the first chance to see them; `tenonry plugins
check` reports those of a process of its own. Front end, and the process of a check.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, NoReturn, Self

from tenonry.errors import PluginError
from tenonry.plugin.discovery import distribution_of_module

logger = logging.getLogger("tenonry.plugins")
HEAVY = ("torch", "transformers", "ray", "jax", "tensorflow", "pandas")
SLOW_S = 5.0  # twice on the same line: the import hangs
TEXTS = {
    "heavy": "imports {text} with its module; import it inside the methods that need it",
    "stdout": "writes to standard output when it is imported: {text}; use a logger instead",
    "thread": "leaves the thread '{text}' when it is imported; start threads in the constructor",
    "exit": "ends the process when it is imported: {text}; raise an error of tenonry.errors instead",
    "import": "fails: {text}; fix the module",
    "hang": "has not finished its import after {text}; wait for nothing while a module is imported",
}
LIBRARY = str(Path(os.__file__).parent)
OWN = {"tenonry", "tenonry_commands", "tenonry_author_tools"}
Lines = Iterable[tuple[FrameType, int]]


class Place(NamedTuple):
    """A line of a plugin's module; "" and 0 where none is at fault."""

    file: str = ""
    line: int = 0
    module: str = ""

    @property
    def package(self) -> str:
        """Top-level package of the module."""
        return self.module.partition(".")[0]


class Event(NamedTuple):
    """One side effect; `kind` is a key of `TEXTS`."""

    kind: str
    text: str
    place: Place


class ImportWatch:
    """Notes what modules do while it is entered, in the thread that entered it. Text for standard output goes to
    standard error until it is left.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._known = set(sys.modules)
        self._threads = {*threading.enumerate()}
        self._thread: int | None = None
        self._stdout = sys.stdout

    def note(self, kind: str, text: str) -> None:
        """Add an event at the plugin's line that is running now."""
        place = place_of(traceback.walk_stack(None))
        if place.file and threading.get_ident() == self._thread:
            self.events.append(Event(kind, text, place))

    def settled(self) -> list[Event]:
        """The events without threads that have ended since, and modules that were only looked for."""
        alive = {each.name for each in threading.enumerate() if each not in self._threads}
        lasting = {"thread": alive, "heavy": sys.modules}
        return [each for each in self.events if each.text in lasting.get(each.kind, (each.text,))]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Import hook: notes heavy modules, and finds nothing."""
        if name in HEAVY and name not in self._known:
            self._known.add(name)
            self.note("heavy", name)

    def write(self, text: str) -> int:
        """Standard output."""
        if self._thread is None:
            return self._stdout.write(text)  # of a handler that a module made
        if text.strip():
            self.note("stdout", text.strip()[:60])
        return sys.stderr.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout, name)

    def ending(self, code: int) -> None:
        """A module calls os._exit, which follows."""
        self.note("exit", f"os._exit({code})")

    def __enter__(self) -> Self:
        begin, end = threading.Thread.start, os._exit
        self._stdout, self._functions = sys.stdout, (begin, end)
        self._thread = threading.get_ident()

        def noted(thread: threading.Thread) -> None:
            begin(thread)
            self.note("thread", thread.name)

        def leave(code: int) -> NoReturn:
            self.ending(code)
            end(code)

        sys.meta_path.insert(0, self)
        sys.stdout = self
        threading.Thread.start = noted  # type: ignore[method-assign, assignment]
        os._exit = leave  # type: ignore[assignment]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.meta_path.remove(self)
        sys.stdout, self._thread = self._stdout, None
        threading.Thread.start, os._exit = self._functions  # type: ignore[method-assign]


class StartWatch(ImportWatch):
    """Reports what the imports of a start do, and one that hangs while it does."""

    def __enter__(self) -> Self:
        self._done = threading.Event()
        self._watcher = threading.Thread(
            target=self._report_hang, args=(threading.get_ident(),), daemon=True
        )
        self._watcher.start()
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._done.set()
        self._watcher.join()
        for event in self.settled():
            report(event)

    def ending(self, code: int) -> None:
        before = len(self.events)
        super().ending(code)
        for event in self.events[before:]:
            report(event)

    def failed(self, error: Exception) -> None:
        """Note where an import failed; any other refusal of a start names its own place."""
        cause = error.__cause__
        if not isinstance(error, PluginError) or cause is None:
            return
        place = place_of(reversed([*traceback.walk_tb(cause.__traceback__)]))
        if isinstance(cause, SyntaxError) and cause.filename:
            place = Place(cause.filename, cause.lineno or 0, module_of(cause.filename))
        if place.file:
            kind = "exit" if isinstance(cause, SystemExit) else "import"
            self.events.append(Event(kind, f"{type(cause).__name__}: {cause}", place))

    def _report_hang(self, thread: int) -> None:
        before = None
        while not self._done.wait(SLOW_S):
            frame = sys._current_frames()[thread]  # noqa: SLF001 - there is no public way
            place = place_of(traceback.walk_stack(frame))
            if place == before and place.file:
                report(Event("hang", f"{2 * SLOW_S:g} s", place))
                return
            before = place


def report(event: Event) -> None:
    """Warn about an event, with distribution, file and line."""
    place = event.place
    name, version = distribution_of_module(place.module) if place.module else ("", "")
    origin = f"{name} {version}".strip() or "a plugin"
    logger.warning(
        "%s: %s:%d: %s; `tenonry doctor` checks all plugins",
        origin,
        place.file or "unknown file",
        place.line,
        TEXTS[event.kind].format(text=" ".join(event.text.split())),
    )


def module_of(file: str) -> str:
    """Top-level module or package of a source file, which may not be importable; "" outside the path."""
    folders = [
        folder for folder in map(Path, filter(None, sys.path)) if folder in Path(file).parents
    ]
    nearest = max(folders, key=lambda folder: len(folder.parts), default=None)
    return "" if nearest is None else Path(file).relative_to(nearest).parts[0].removesuffix(".py")


def place_of(lines: Lines) -> Place:
    """The innermost line of the plugin that tenonry imports, from innermost to outermost; libraries that the plugin
    imports are not named.
    """
    places: list[Place] = []
    place = None
    for frame, line in lines:
        file, names = frame.f_code.co_filename, frame.f_globals
        if file.startswith("<frozen importlib"):
            places += [place] if place else []
            place = None
            continue
        module = names.get("__name__") or ""
        package = (names.get("__package__") or module).partition(".")[0]
        if package in OWN and places:
            break
        is_library = file.startswith((LIBRARY, "<")) and "site-packages" not in file
        if place is None and not (package in OWN or module == "__main__" or is_library):
            place = Place(file, line, module)
    own = (each for each in places if each.package == places[-1].package)
    return next(own, Place())
