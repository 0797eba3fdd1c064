"""The command `replace`: replaces the engines of a running server by engines with other settings."""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

from tenonry.errors import ConfigError, LaunchError
from tenonry.interfaces.command import Command
from tenonry_commands.arguments import PARTS, add_setting_arguments, parse_options

TIMEOUT_S = 3600.0
KEY = "TENONRY_API_KEY"


class ReplaceCommand(Command):
    """`tenonry replace --scheduler my_pkg:Mine`: a request to `POST /replace` of a server."""

    summary = "Replace the engines of a running server, with other settings or plugin versions."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--url",
            default="http://127.0.0.1:8000",
            help="URL of the server. [default: %(default)s]",
        )
        parser.add_argument("--api-key", help=f"API key of the server. [env: {KEY}]")
        add_setting_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        changes = changes_from(args)
        post(args.url, args.api_key or os.environ.get(KEY, "").partition(",")[0], changes)
        sys.stdout.write(f"the engines were replaced: {json.dumps(changes)}\n")
        return 0


def changes_from(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of flags. Raises ConfigError for options of an unnamed plugin."""
    given = vars(args)
    changes = {name: given[name] for name in given[PARTS] if given.get(name) is not None}
    for name in given[PARTS]:
        flag = f"--{name.replace('_', '-')}"
        if options := parse_options(given.get(f"{name}_option") or (), f"{flag}-option"):
            if name not in changes:
                raise ConfigError(f"{flag}-option needs {flag}")
            changes[name] = {"name": changes[name], "options": options}
    return changes


def post(url: str, key: str, changes: dict[str, Any]) -> None:
    """Send the request, and wait for its completion. Raises LaunchError with the server's answer."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url {url!r} must begin with http:// or https://")
    request = urllib.request.Request(  # noqa: S310 - checked above
        url.rstrip("/") + "/replace",
        data=json.dumps({"changes": changes}).encode(),
        headers={"content-type": "application/json", "authorization": f"Bearer {key}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310 - as above
            response.read()
    except urllib.error.HTTPError as error:
        raise LaunchError(f"{url} answered {error.code}: {message_of(error)}") from None
    except OSError as error:
        raise LaunchError(f"{url} cannot be reached: {error}; give --url") from None


def message_of(error: urllib.error.HTTPError) -> str:
    """Error message of the server, with a hint if it has no such route."""
    with error:
        text = error.read().decode(errors="replace")
    try:
        message = str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = text[:500]
    if error.code == 404:
        message += "; the server needs --enable-operator-routes and --api-key"
    return message
