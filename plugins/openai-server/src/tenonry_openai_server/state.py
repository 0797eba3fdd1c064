"""State that all requests share: the phase of the server, and the engine. Owned by the event loop; front end."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from tenonry.config import EngineConfig
from tenonry_openai_server.adapter_folder import AdapterFolder
from tenonry_openai_server.adapters import ServedAdapters
from tenonry_openai_server.errors import APIError
from tenonry_openai_server.health import HealthCheck, StoppedProcesses
from tenonry_openai_server.ignored import IgnoredLog
from tenonry_openai_server.parsers import OutputParsers, chosen_parsers
from tenonry_openai_server.served_facts import ServedFacts
from tenonry_openai_server.settings import ServerConfig

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM
    from tenonry.step import Adapter


class Phase(enum.StrEnum):
    """The server's life, in this order; DEAD is the way out when the engine died."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


_REFUSALS = {
    Phase.STARTING: ("the model is still loading", 2.0),
    Phase.DRAINING: ("the server is shutting down", 5.0),
    Phase.DEAD: ("the engine has died; this server is about to stop", 5.0),
}


class ServerState:
    """Shared by all requests. `active`: number of HTTP requests in progress; `idle` is set while there is none."""

    def __init__(self, config: EngineConfig, settings: ServerConfig) -> None:
        self.config, self.settings = config, settings
        self.phase = Phase.STARTING
        self.active = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.created = int(time.time())
        self.health = HealthCheck()
        self.stopped = StoppedProcesses()
        self.facts = ServedFacts()
        folder = None
        if settings.lora_folder is not None:
            most = settings.max_folder_loras or config.max_loras
            folder = AdapterFolder(settings.lora_folder, most)
        self.adapters = ServedAdapters(
            config, is_shared=settings.api_server_count > 1, folder=folder
        )
        refuses = settings.unknown_fields == "refuse"
        self.ignored = IgnoredLog(self._count_ignored_field, refuses=refuses)
        self.parsers: OutputParsers | None = None
        self.attached: AsyncLLM | None = None

    def attach(self, engine: AsyncLLM) -> None:
        """The engines are ready."""
        self.attached = engine
        if self.phase is Phase.STARTING:
            self.phase = Phase.READY

    def choose_parsers(self, engine: AsyncLLM) -> None:
        """Find the parsers of answers, once, before `attach`. Raises PluginError and ConfigError."""
        self.parsers = chosen_parsers(self.settings.parser_names, engine.io_processor)

    def _count_ignored_field(self) -> None:
        """A part of a request has no effect."""
        if self.attached is not None:
            self.attached.submit("record_ignored_field")

    def enter(self) -> None:
        """An HTTP request begins."""
        self.active += 1
        self.idle.clear()

    def leave(self, scope: MutableMapping[str, Any]) -> None:
        """An HTTP request has been answered."""
        self.adapters.release(scope)
        self.active -= 1
        if not self.active:
            self.idle.set()

    @property
    def is_ready(self) -> bool:
        """True while new requests are taken and tokens can flow."""
        engine = self.attached
        return self.phase is Phase.READY and engine is not None and engine.is_serving

    @property
    def is_recovering(self) -> bool:
        """True while engines that died are started again, and requests wait for them."""
        return self.phase is Phase.READY and self.is_healthy and not self.is_ready

    @property
    def is_healthy(self) -> bool:
        """True while the engine lives; a server that drains is healthy, though not ready."""
        return (
            self.attached is not None and self.phase is not Phase.DEAD and not self.attached.errored
        )

    @property
    def engine(self) -> AsyncLLM:
        """Return the engine, for requests that need no tokens from it. Raises APIError 503 before it is ready."""
        if self.attached is None:
            raise self._refusal(Phase.STARTING if self.phase is Phase.READY else self.phase)
        return self.attached

    def admit(self) -> AsyncLLM:
        """The engine, for a request for tokens. Raises APIError 503 unless the server is ready."""
        if self.attached is not None and self.attached.errored:
            raise self._refusal(Phase.DEAD)
        if self.phase is not Phase.READY:
            raise self._refusal(self.phase)
        return self.engine

    @staticmethod
    def _refusal(phase: Phase) -> APIError:
        message, retry_after_s = _REFUSALS[phase]
        code = "engine_dead" if phase is Phase.DEAD else phase.value
        return APIError(503, message, code=code, retry_after_s=retry_after_s)

    @property
    def model_names(self) -> Sequence[str]:
        """The names that requests may use, the first being the default."""
        if self.config.served_model_name:
            return self.config.served_model_name
        return (self.attached.model.name,) if self.attached is not None else (self.config.model,)

    async def choose_model(
        self, name: str | None, scope: MutableMapping[str, Any] | None = None
    ) -> tuple[str, Adapter | None]:
        """Return the served name for a request, and its adapter, if any. Raises APIError 404 and 503. "" selects the
        default, like no name.

        `scope`: of an HTTP request that uses the adapter, which is loaded if it is in the operator's folder.
        """
        if not name or name in self.model_names:
            return self.check_model(name), None
        if scope is None:
            adapter = (await self.adapters.all(self.engine)).get(name)
        else:
            adapter = await self.adapters.of_request(self.engine, name, scope)
        if adapter is None:
            return self.check_model(name, tuple(await self.adapters.all(self.engine))), None
        return name, adapter

    def check_model(self, name: str | None, others: Sequence[str] = ()) -> str:
        """The served name of a request. Raises APIError 404 that lists the served names, and `others`."""
        names = self.model_names
        if not name or name in names:
            return name or names[0]
        raise APIError(
            404,
            f"the model '{name}' is not served here; served: {', '.join([*names, *others])}",
            param="model",
            code="model_not_found",
        )
