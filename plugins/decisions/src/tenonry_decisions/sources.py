"""Records for commands: from a file, or from a running server. Command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from tenonry.errors import ConfigError
from tenonry_decisions.frames import LIVE, SHADOW
from tenonry_decisions.recording import Recording, recordings

KEY = "TENONRY_API_KEY"
HINTS = {401: "; give --api-key", 404: "; the server needs --decision-steps and --route decisions"}


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the source of the records, and the selection from them."""
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument(
        "--log", metavar="FILE", action="append", help="File of `--decision-log`. Repeatable."
    )
    group.add_argument(
        "--url",
        metavar="URL",
        help="URL of a server with `--decision-steps` and `--route decisions`.",
    )
    parser.add_argument("--api-key", metavar="KEY", help=f"API key of the server. [env: {KEY}]")
    parser.add_argument("--engine", type=int, metavar="N", help="Use the records of engine N only.")
    parser.add_argument(
        "--shadow",
        action="store_true",
        help="Use the decisions of the shadow scheduler instead of the live one.",
    )


def load(args: argparse.Namespace) -> list[Recording]:
    """All runs with requests, the latest last, of the source that the flags select. Raises ConfigError."""
    return _select(args, _parts(args), SHADOW if args.shadow else LIVE)


def load_pair(args: argparse.Namespace) -> tuple[Recording, Recording | None]:
    """The latest live run, and with `--shadow` the shadow of the same run. Raises ConfigError."""
    parts = _parts(args)
    live = latest(args, _select(args, parts, LIVE))
    if not args.shadow:
        return live, None
    for shadow in reversed(_select(args, parts, SHADOW)):
        if _run(shadow) == _run(live):
            return live, shadow
    raise ConfigError(f"{place(args)}: the latest run has no shadow")


def latest(args: argparse.Namespace, found: list[Recording]) -> Recording:
    """The latest run; reports earlier ones on stderr. Raises ConfigError if several engines recorded."""
    engines = _engines(found)
    if len(engines) > 1:
        raise ConfigError(
            f"{place(args)}: records of engines {_listed(engines)}; choose one with --engine N"
        )
    if len(found) > 1:
        sys.stderr.write(
            f"{place(args)}: using the latest of {len(found)} runs of engine {engines[0]}\n"
        )
    return found[-1]


def place(args: argparse.Namespace) -> str:
    """Name of the source in messages."""
    return args.url or " ".join(args.log)


def _parts(args: argparse.Namespace) -> list[bytes]:
    if args.log:
        return [_read(path) for path in args.log]
    return _fetch(args.url, args.api_key or os.environ.get(KEY, "").partition(",")[0])


def _select(args: argparse.Namespace, parts: list[bytes], source: str) -> list[Recording]:
    try:
        found = [each for each in recordings(parts, source) if each.tracks]
    except ValueError as error:
        raise ConfigError(f"{place(args)}: {error}") from None
    if not found:
        what = "of a shadow scheduler" if source == SHADOW else "with requests"
        raise ConfigError(f"{place(args)}: no records {what}")
    chosen = [each for each in found if args.engine in (None, each.header.engine)]
    if not chosen:
        raise ConfigError(
            f"{place(args)}: --engine {args.engine} has no records; engines with records: "
            f"{_listed(_engines(found))}"
        )
    return sorted(chosen, key=lambda each: each.began_at)


def _engines(found: list[Recording]) -> list[int]:
    return sorted({each.header.engine for each in found})


def _listed(engines: list[int]) -> str:
    return ", ".join(map(str, engines))


def _run(recording: Recording) -> tuple[int, int]:
    return recording.header.engine, recording.header.run


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _fetch(url: str, api_key: str) -> list[bytes]:
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        response = httpx.get(
            f"{url.rstrip('/')}/plugins/decisions/records", headers=headers, timeout=60
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"{url} is unreachable: {error}") from None
    if response.status_code != httpx.codes.OK:
        hint = HINTS.get(response.status_code, "")
        raise ConfigError(f"{url} returned {response.status_code}: {_message(response.text)}{hint}")
    return [response.content]


def _message(text: str) -> str:
    """Message of an error in the server's shape, or the beginning of any other answer."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return text[:300]
