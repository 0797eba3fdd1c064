"""Rules about the import of a plugin, from what a process of its own reports. Command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tenonry.config import EngineConfig, fact
from tenonry.info import PluginRecord
from tenonry.plugin import Point
from tenonry.plugin.kinds import HOOK_MODULES, KINDS
from tenonry_author_tools.children import run_child
from tenonry_author_tools.findings import Finding, Rule
from tenonry_author_tools.subject import Subject
from tenonry_commands.flags import flags_of

TIMEOUT_S = 20.0
START_S = 60.0  # for the start of an interpreter on a busy machine
# Kinds whose modules are imported by front ends and command lines, besides those of the kernel.
LIGHT = {
    "command",
    "plugin_command",
    "hook_module",
    "point",
    "request_check",
    "step_observer",
    "load_balancer",
}
EVENTS = {
    "deprecated": Rule.DEPRECATED,
    "import": Rule.IMPORT,
    "exit": Rule.EXIT,
    "heavy": Rule.HEAVY,
    "stdout": Rule.STDOUT,
    "thread": Rule.THREAD,
}
TEXTS = {
    "deprecated": "{kind} '{name}' uses {text}",
    "heavy": "{kind} '{name}' imports {text} with its module",
    "stdout": "{kind} '{name}' writes to standard output when it is imported: {text}",
    "thread": "{kind} '{name}' leaves the thread '{text}' when it is imported",
    "exit": "{kind} '{name}' ends the process when it is imported: {text}",
    "import": "{text}",
}
FRAME = re.compile(r'File "(.+)", line (\d+) in ')


def check_import(
    subject: Subject,
    record: PluginRecord,
    point: Point,
    timeout_s: float = TIMEOUT_S,
    versions: dict[str, tuple[int, int]] | None = None,
) -> Iterator[Finding]:
    """Breaches of rules by the import of one plugin, and of its interface.

    `versions` gets its kind, with the interface versions of the plugin and of the kernel.
    """
    words = {"kind": record.kind.replace("_", " "), "name": record.name}
    label = subject.label
    declared = subject.entry_point(record)
    if point is not HOOK_MODULES and ":" not in record.target:
        text = f"{words['kind']} '{record.name}' names the module '{record.target}' without a class"
        advice = f'write {record.name} = "{record.target}:Class"'
        yield Finding(Rule.ENTRY_POINT, label, text, *declared, advice)
        return
    answer = probe(subject, record, point, timeout_s)
    if "hang" in answer:
        text = f"{words['kind']} '{record.name}' did not finish its import within {timeout_s:g} s"
        yield Finding(Rule.HANG, label, text, *answer["hang"])
    if "died" in answer:
        text = (
            f"{words['kind']} '{record.name}' ended the process that imported it: {answer['died']}"
        )
        yield Finding(Rule.EXIT, label, text, *declared)
    for event in answer.get("events", ()):
        is_light = record.kind in KINDS or record.kind in LIGHT
        if event["event"] != "heavy" or (is_light and not answer["is_base_heavy"]):
            yield _finding_of(event, label, record, declared)
    file, line = answer.get("place") or declared
    if problem := answer.get("problem"):
        text = problem.replace(f"; it stands at {file}:{line}", "")
        yield Finding(Rule.INTERFACE, label, text, file, line)
        return
    version, current = answer.get("version"), answer.get("current")
    if versions is not None and version is not None and current is not None:
        oldest = versions.get(record.kind, (version, current))
        versions[record.kind] = min(oldest, (version, current))  # of several plugins of a kind
    if version is not None and current is not None and version == current - 1:
        text = f"{words['kind']} '{record.name}' is of version {version} of its interface, the oldest supported"
        yield Finding(Rule.OLD_INTERFACE, label, text, file, line, f"port it to version {current}")
    yield from _check_settings(label, record, answer.get("settings", {}), (file, line))


def _finding_of(
    event: dict[str, Any], label: str, record: PluginRecord, declared: tuple[str, int]
) -> Finding:
    kind = record.kind.replace("_", " ")
    text = event["text"].removesuffix("; fix its module")
    text = TEXTS[event["event"]].format(kind=kind, name=record.name, text=text)
    place = (event["file"], event["line"]) if event["file"] else declared
    advice = ""
    if event["event"] == "import":
        module = record.target.partition(":")[0]
        fault = "module" if event["file"] else "entry point"
        advice = f"fix the {fault}; `python -c 'import {module}'` repeats the import"
    return Finding(EVENTS[event["event"]], label, text, *place, advice)


def _check_settings(
    label: str, record: PluginRecord, settings: dict[str, list[str]], place: tuple[str, int]
) -> Iterator[Finding]:
    """Settings and flags that the kernel has already."""
    own = {
        flag: name
        for name, field in EngineConfig.model_fields.items()
        if fact(field, "flag") is not None
        for flag in flags_of(name, field)
    }
    for name, flags in settings.items():
        taken = [flag for flag in flags if flag in own]
        if taken or name in EngineConfig.model_fields:
            kind = record.kind.replace("_", " ")
            flag = (taken or flags)[0]
            text = f"setting '{name}' ({flag}) of {kind} '{record.name}' is one of tenonry itself"
            yield Finding(Rule.SETTING_TAKEN, label, text, *place)


def probe(subject: Subject, record: PluginRecord, point: Point, timeout_s: float) -> dict[str, Any]:
    """Import a plugin in a process; `hang` or `died` stand in the answer where there is no other."""
    base = point.base
    if isinstance(base, type):
        base = f"{base.__module__}:{base.__qualname__}"
    with tempfile.TemporaryDirectory() as folder:
        traces, answer = Path(folder, "traces"), Path(folder, "answer")
        task = {
            "group": point.group,
            "base": base,
            "kind": point.kind,
            "record": msgspec.to_builtins(record),
            "timeout_s": timeout_s,
            "traces": str(traces),
            "answer": str(answer),
        }
        paths = [*map(str, subject.path), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-m", "tenonry_author_tools.probe", json.dumps(task)]
        try:
            done = run_child(
                command,
                timeout_s + START_S,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except subprocess.TimeoutExpired:
            return {"hang": _innermost(_text(traces), subject)}
        if not answer.exists() and _text(traces):  # it ends by itself, once it has written where
            return {"hang": _innermost(_text(traces), subject)}
        if not answer.exists():
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            return {"died": f"exit status {done.returncode}, {lines[-1] if lines else 'no output'}"}
        found: dict[str, Any] = json.loads(answer.read_text("utf-8"))
        return found


def _text(file: Path) -> str:
    return file.read_text("utf-8") if file.exists() else ""


def _innermost(traces: str, subject: Subject) -> tuple[str, int]:
    """File and line of the plugin in which its import hangs."""
    ours = (str(Path(os.__file__).parent), "<", str(Path(__file__).parent))
    for file, line in FRAME.findall(traces):
        is_own = "site-packages" in file or not file.startswith(ours)
        if is_own and "/tenonry/" not in file:
            return file, int(line)
    return str(subject.metadata), 1
