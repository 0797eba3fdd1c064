"""`tenonry ps`: the processes of this user's running instances, as trees. It only reads their titles, so that it also
works for an instance that hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import psutil

from tenonry.interfaces.command import Command

TITLE = "tenonry: "
EPOCH = " epoch "  # in the titles of engines that were started later than the first
FALLBACK = " fallback "  # behind it, where other plugins took over
TOP_ROLES = {
    "api-server",
    "supervisor",
    "node",
}  # any other was started by someone: a titled process, or a user's program
STATES = {
    "stopped": "stopped",
    "tracing-stop": "stopped",
    "zombie": "dead",
    "dead": "dead",
}  # psutil's; else "ok"


class Row(NamedTuple):
    """One process. `instance`: the pid of the topmost process; `depth`: how far below that this one is. `epoch`: of an
    engine, the start that made it; 0 for others. `fallback`: the plugins that took the place of others.
    """

    instance: int
    depth: int
    role: str
    rank: str
    epoch: int
    pid: int
    uptime_s: float
    state: str
    fallback: str = ""


class PsCommand(Command):
    """Lists the processes of running instances."""

    summary = "List the processes of running instances."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print a list of records.")

    def run(self, args: argparse.Namespace) -> int:
        rows = process_rows()
        text = _table(rows) if rows else "no instance runs\n"
        sys.stdout.write(
            json.dumps([row._asdict() for row in rows], indent=1) + "\n" if args.json else text
        )
        return 0


def process_rows() -> list[Row]:
    """Every process of every instance of this user, each after its parent."""
    fields = ["ppid", "uids", "cmdline", "name", "status", "create_time"]
    found = {process.pid: process.info for process in psutil.process_iter(fields)}
    mine = {
        pid: info
        for pid, info in found.items()
        if info["uids"] and info["uids"].real == os.getuid()
    }
    titles = {pid: title for pid, info in mine.items() if (title := _title(info))}
    children: dict[int, list[int]] = {}
    for pid in list(titles):
        parent = mine[pid]["ppid"]
        if parent in titles or (titles[pid][0] not in TOP_ROLES and parent in mine):
            children.setdefault(parent, []).append(pid)
    tops = (set(titles) | set(children)) - {pid for below in children.values() for pid in below}

    def walk(pid: int, instance: int, depth: int) -> Iterator[Row]:
        role, rank = titles.get(pid, ("program", ""))
        rank, _, number = rank.partition(EPOCH)
        number, _, fallback = number.partition(FALLBACK)
        epoch = 0
        if role == "engine":
            epoch = int(number) if number.isdecimal() else 1
        uptime = time.time() - mine[pid]["create_time"]
        state = STATES.get(mine[pid]["status"], "ok")
        yield Row(instance, depth, role, rank, epoch, pid, round(uptime, 1), state, fallback)
        for child in sorted(children.get(pid, ())):
            yield from walk(child, instance, depth + 1)

    return [row for top in sorted(tops) for row in walk(top, top, 0)]


def _title(info: dict[str, Any]) -> tuple[str, str] | None:
    """Role and rank, if this is one of ours. A zombie has no command line left, only the first letters as its name."""
    text = " ".join(info["cmdline"] or [info["name"] or ""]).rstrip("\0 ")
    if not text.startswith(TITLE):
        return None
    role, _, rank = text.removeprefix(TITLE).partition(" ")
    return role, rank


def _table(rows: list[Row]) -> str:
    lines = [("ROLE", "RANK", "EPOCH", "PID", "UPTIME", "STATE")]
    for row in rows:
        role = "  " * row.depth + row.role
        epoch = str(row.epoch or "-")
        uptime = str(timedelta(seconds=int(row.uptime_s)))
        state = f"{row.state}, {row.fallback}" if row.fallback else row.state
        lines.append((role, row.rank or "-", epoch, str(row.pid), uptime, state))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "".join("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)
