"""Imports one plugin and reports what its module did. A process of its own: the module may hang, exit or start threads.

Run by `tenonry_author_tools.imported`, with a JSON object as its argument; the answer is a JSON object in the file that
this names.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from tenonry.config import fact
from tenonry_author_tools.hooks import hook_fault
from tenonry_commands.deprecations import deprecations, source_of
from tenonry_commands.flags import flags_of
from tenonry_commands.import_watch import HEAVY, Event, ImportWatch, place_of


class Exited(BaseException):
    """Raised instead of ending the process."""


class Watch(ImportWatch):
    """Turns os._exit into an exception, so that the answer is written."""

    def ending(self, code: int) -> None:
        super().ending(code)
        raise Exited


def record_of(event: Event) -> dict[str, Any]:
    """An event as the answer has it."""
    return {
        "event": event.kind,
        "text": event.text,
        "file": event.place.file,
        "line": event.place.line,
    }


def failed_import(error: Exception) -> dict[str, Any]:
    """Event of an import that raised, with the place of its cause."""
    cause = error.__cause__ or error
    file, line, _ = place_of(reversed([*traceback.walk_tb(cause.__traceback__)]))
    if isinstance(cause, SyntaxError) and cause.filename:
        file, line = cause.filename, cause.lineno or 0
    event = "exit" if isinstance(cause, SystemExit) else "import"
    return {"event": event, "text": str(error), "file": file, "line": line}


def examine(task: dict[str, Any]) -> dict[str, Any]:
    """Import the plugin, and check it against its point."""
    from tenonry.errors import PluginError
    from tenonry.info import PluginRecord
    from tenonry.plugin.checks import check_plugin
    from tenonry.plugin.kinds import HOOK_MODULES, POINTS
    from tenonry.plugin.plan import import_target
    from tenonry.point import Point

    point = Point(task["group"], task["base"], kind=task["kind"])
    base: Any = point.load_base()
    is_base_heavy = any(name in sys.modules for name in HEAVY)
    record = PluginRecord(**task["record"])
    watch = Watch().__enter__()  # until the end of the process
    traces = Path(task["traces"]).open("w", encoding="utf-8")  # noqa: SIM115 - written to until the end of the process
    faulthandler.dump_traceback_later(task["timeout_s"], file=traces, exit=True)
    answer: dict[str, Any] = {"events": [], "settings": {}, "is_base_heavy": is_base_heavy}
    try:
        found = import_target(record)
    except Exited:
        answer["events"] += map(record_of, watch.settled())
        return answer
    except PluginError as error:
        answer["events"] += [*map(record_of, watch.settled()), failed_import(error)]
        return answer
    answer["events"] += map(record_of, watch.settled())
    try:
        check_plugin(found, record, point)
        if point.group == POINTS.group and not isinstance(found, Point):
            raise PluginError(f"{record.label()} is not a tenonry.plugin.Point")
    except PluginError as error:
        answer["problem"] = str(error)
    answer["place"] = source_of(found)
    if point.group == HOOK_MODULES.group and (fault := hook_fault(found)):
        answer["problem"], answer["place"] = (
            f"{record.label()} {fault.text}",
            source_of(fault.owner),
        )
    for text, file, line in deprecations(found, base):
        answer["events"].append({"event": "deprecated", "text": text, "file": file, "line": line})
    answer["version"] = getattr(found, "interface_version", None)
    answer["current"] = getattr(base, "interface_version", None)
    fields = getattr(getattr(found, "Settings", None), "model_fields", {})
    answer["settings"] = {
        name: flags_of(name, field) if fact(field, "flag") is not None else []
        for name, field in fields.items()
    }
    return answer


def main() -> None:
    """Answer one task."""
    task = json.loads(sys.argv[1])
    end = os._exit
    answer = examine(task)
    faulthandler.cancel_dump_traceback_later()
    Path(task["answer"]).write_text(json.dumps(answer), "utf-8")
    end(0)  # a thread that was left would keep the process


if __name__ == "__main__":
    main()
