"""Server of the command: a child on a Unix socket in a private folder, which ends with the command."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

from tenonry.cli import main, make_parser
from tenonry.errors import LaunchError
from tenonry.launch.supervise import STOP_SIGNAL, Child, describe_exit, start_child, stop_children

ROLE = "tenonry_openai_server.batch.own_server:run"
STOP_S = 30.0


class OwnServer:
    """`tenonry serve` with the words of the command line."""

    def __init__(self, words: Sequence[str]) -> None:
        """Raises PluginNotFound without a server to start; ends the command for flags that it does not have."""
        make_parser("serve")[0].parse_args(list(words))
        self._folder = Path(tempfile.mkdtemp(prefix="tenonry-batch-"))
        self.socket = str(self._folder / "http")
        arguments = ["serve", *words, "--uds", self.socket, "--disable-access-log"]
        self._child: Child = start_child(
            "batch server",
            ROLE,
            {"arguments": msgspec.json.encode(arguments).decode()},
            removes=str(self._folder),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        stop_children([self._child], STOP_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def check(self) -> None:
        """Raises LaunchError once it has ended."""
        code = self._child.exit_code
        if code is not None:
            raise LaunchError(f"the server has ended ({describe_exit(code)}); see the lines above")


def run(payload: Mapping[str, str]) -> int:
    """Run `tenonry serve` in the child, with its line about being ready among the logs."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    signal.signal(STOP_SIGNAL, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    return main(msgspec.json.decode(payload["arguments"], type=list[str]))
