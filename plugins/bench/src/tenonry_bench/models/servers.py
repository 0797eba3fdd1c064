"""Servers of engines that answer concurrent requests over HTTP. The measuring process."""

from __future__ import annotations

import re
import socket
from typing import Any

from tenonry_bench.models.engines import OURS, Engine, environment
from tenonry_bench.own_server import ServerProcess, start_own_server

SERVED_NAME = "bench"
READY = re.compile(r"Application startup complete")


def started_server(engine: Engine, options: dict[str, Any]) -> ServerProcess:
    """Start the server of an engine; it is not ready yet."""
    limits = ["--max-model-len", str(options["max_model_len"])]
    words = [*limits, "--served-model-name", SERVED_NAME]
    threads = environment(options["threads"])
    if engine.name == OURS:
        own = ["--max-num-seqs", str(options["max_num_seqs"]), *options["engine_args"]]
        return start_own_server(options["model"], 0, [*words, *own], threads)
    port = free_port()
    place = ["--model", options["model"], "--host", "127.0.0.1", "--port", str(port)]
    return ServerProcess([*engine.server, *place, *words], port, READY, threads)


def free_port() -> int:
    """A port without a listener at this moment, for a server that cannot choose and report one."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
