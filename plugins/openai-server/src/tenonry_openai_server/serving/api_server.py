"""One of several API servers: a process that shares the listening socket and the engines with its siblings. Light until
it runs; child of the supervisor.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from tenonry.config import EngineConfig
from tenonry.errors import TenonryError
from tenonry.launch.supervise import STOP_SIGNAL
from tenonry_openai_server.serving.front_end import make_front_end
from tenonry_openai_server.serving.http_thread import HTTPThread
from tenonry_openai_server.serving.lifecycle import serve_until_stopped, signals
from tenonry_openai_server.serving.logging_setup import set_up_logging
from tenonry_openai_server.settings import ServerConfig
from tenonry_openai_server.state import ServerState
from tenonry_scale_out.channel import ControlLink
from tenonry_scale_out.messages import Attachment, ServerFailed

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

ROLE = f"{__name__}:run_api_server"


def run_api_server(payload: Mapping[str, str]) -> int:
    """The role of an API server's process; returns its exit status. `payload`: config, settings, attachment, socket,
    opens ("immediately" or "when ready").
    """
    config = EngineConfig.model_validate_json(payload["config"])
    settings = ServerConfig.model_validate_json(payload["settings"])
    attachment = msgspec.json.decode(payload["attachment"], type=Attachment)
    set_up_logging(f"api-server {attachment.index}", settings.root_path)
    link = ControlLink(attachment)
    http = HTTPThread(
        ServerState(config, settings),
        socket.socket(fileno=int(payload["socket"])),
        is_shared=True,
        opens_when_ready=payload["opens"] == "when ready",
    )
    link.on_stop = http.stop
    try:
        with signals(http, (STOP_SIGNAL,)) as start:  # the supervisor handles Ctrl-C
            http.start()
            return serve_until_stopped(
                http,
                start,
                lambda config: _attach(config, settings, link),
                lambda _: _handle_sigterm(http),
            )
    except TenonryError as error:
        link.send(ServerFailed(str(error)))
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        link.close()


def _handle_sigterm(http: HTTPThread) -> None:
    """Stop this one server of several on SIGTERM; during its start only the supervisor stops it."""
    signal.signal(signal.SIGTERM, lambda *_: http.request_stop())


def _attach(config: EngineConfig, settings: ServerConfig, link: ControlLink) -> AsyncLLM:
    from tenonry_scale_out.attached import AttachedEngines

    return make_front_end(config, settings, engines=AttachedEngines(config, link))
