"""Runs a server of several models. Main thread of the front end."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.version import __version__
from tenonry_openai_server.hosting.app import HostState, create_host_app
from tenonry_openai_server.hosting.host import ModelHost
from tenonry_openai_server.hosting.memory import available_memory, gib
from tenonry_openai_server.hosting.settings import Hosted, ModelSpec
from tenonry_openai_server.hosting.starter import EngineStarter, check_fits, examined
from tenonry_openai_server.serving.http_thread import HTTPThread
from tenonry_openai_server.serving.lifecycle import serve_until_stopped, set_title, signals
from tenonry_openai_server.serving.listener import listen
from tenonry_openai_server.serving.logging_setup import set_up_logging
from tenonry_openai_server.settings import ServerConfig

logger = logging.getLogger("tenonry.server")


def serve_models(hosted: Hosted) -> int:
    """Serve until a signal; returns the exit status.

    Raises ConfigError for a model that cannot be used or never fits, and TenonryError if a pinned one cannot start.
    """
    budget = memory_budget(hosted)
    sock, settings = listen(hosted.settings)
    with contextlib.closing(sock):
        return _serve(hosted, settings, sock, budget)


def _serve(hosted: Hosted, settings: ServerConfig, sock: socket.socket, budget: int) -> int:
    set_up_logging("api-server", settings.root_path)
    set_title("api-server 0")
    models = [examined(spec, budget) for spec in hosted.specs]
    check_fits(models, budget)
    host = ModelHost(models, hosted.host, budget, EngineStarter(budget))
    state = HostState(hosted.specs[0].config, settings, host)
    http = HTTPThread(state, sock, make_app=create_host_app)
    names = ", ".join(model.name for model in models)

    def start(_: EngineConfig) -> ModelHost:
        http.start()
        logger.info("listening on %s; %s for %s", settings.url, gib(budget), names)
        host.load_pinned()
        return host

    def announce(_: ModelHost) -> None:
        sys.stdout.write(f"tenonry {__version__} ready at {settings.url} · models: {names}\n")
        sys.stdout.flush()

    with signals(http) as starting:
        try:
            return serve_until_stopped(http, starting, start, announce)
        finally:
            host.shutdown()


def memory_budget(hosted: Hosted) -> int:
    """Bytes for all loaded models. Raises ConfigError for models on different devices."""
    devices = {spec.config.may_use_gpus: spec for spec in hosted.specs}
    if len(devices) > 1:
        raise ConfigError(
            f"device: {_named(devices[True])} may use a GPU and {_named(devices[False])} the CPU; models of one server "
            "share one kind of memory: give all the same --device"
        )
    return hosted.host.model_memory_budget or available_memory(hosted.specs[0].config)


def _named(spec: ModelSpec) -> str:
    return f"the model '{spec.names[0]}'"
