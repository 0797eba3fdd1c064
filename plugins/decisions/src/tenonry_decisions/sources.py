"""Records for commands: from a file, or from a running server. Command line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tenonry.errors import ConfigError
from tenonry_decisions.frames import LIVE, SHADOW
from tenonry_decisions.recording import Recording, recordings


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the records are, and which of them are meant."""
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--log", metavar="FILE", nargs="+", help="Files of `--decision-log`.")
    group.add_argument(
        "--url",
        metavar="URL",
        help="A server that runs with `--decision-steps` and `--route decisions`.",
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        default=os.environ.get("TENONRY_API_KEY"),
        help="API key of the server. [env: TENONRY_API_KEY]",
    )
    parser.add_argument(
        "--shadow",
        action="store_true",
        help="Decisions of the shadow scheduler instead of the live one.",
    )


def load(args: argparse.Namespace, source: str | None = None) -> list[Recording]:
    """All runs with requests, the latest last; by default of the source that the flags name. Raises ConfigError."""
    source = source or (SHADOW if args.shadow else LIVE)
    parts = [_read(path) for path in args.log] if args.log else _fetch(args.url, args.api_key)
    place = args.url or " ".join(args.log)
    try:
        found = [each for each in recordings(parts, source) if each.tracks]
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None
    if not found:
        what = "of a shadow scheduler" if source == SHADOW else "with requests"
        raise ConfigError(f"{place}: there are no records {what}")
    return found


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _fetch(url: str, api_key: str | None) -> list[bytes]:
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        response = httpx.get(
            f"{url.rstrip('/')}/plugins/decisions/records", headers=headers, timeout=60
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"{url} does not answer: {error}") from None
    if response.status_code != httpx.codes.OK:
        raise ConfigError(f"{url} answered {response.status_code}: {response.text:.300}")
    return [response.content]
