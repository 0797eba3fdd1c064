"""One model of several: its state, its routes, and its engine while it is loaded. Front end, event loop."""

from __future__ import annotations

import asyncio
import enum
import time
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.routing import Match
from starlette.types import Scope

from tenonry.info import ModelInfo
from tenonry_openai_server.app import create_api
from tenonry_openai_server.errors import APIError
from tenonry_openai_server.hosting.memory import ModelMemory
from tenonry_openai_server.hosting.settings import ModelSpec, declared_adapters
from tenonry_openai_server.state import ServerState

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM
    from tenonry.client.engines import Engines


class Status(enum.StrEnum):
    """State of a model. SLEEPING is shown for a READY one whose engines sleep."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    SLEEPING = "sleeping"
    DRAINING = "draining"
    FAILED = "failed"


class ModelState(ServerState):
    """Request state of one model, which has no engine until a request loads it."""

    @property
    def engine(self) -> AsyncLLM:
        if self.attached is None:
            name = self.model_names[0]
            message = f"the model '{name}' is not loaded; a request for tokens loads it"
            raise APIError(503, message, code="model_not_loaded", retry_after_s=2.0)
        return self.attached


class HostedModel:
    """One model. `users`: requests that run or wait for it. `reserved`: bytes of the budget that it holds.

    `change`: the task that loads or unloads it. `engines` can be shut down while they start, from any thread.
    """

    def __init__(self, spec: ModelSpec, info: ModelInfo) -> None:
        self.spec, self.info = spec, info
        self.status = Status.UNLOADED
        self.reason = ""
        self.memory: ModelMemory | None = None
        self.reserved = 0
        self.users = 0
        self.waiting = 0
        self.last_used = 0.0
        self.failed_at = 0.0
        self.change: asyncio.Task[None] | None = None
        self.engines: Engines | None = None
        self.engine: AsyncLLM | None = None
        self.adapters = frozenset(declared_adapters(spec.config))
        self.state: ServerState
        self.app: FastAPI
        self.reset()

    @property
    def name(self) -> str:
        return self.spec.names[0]

    @property
    def longest(self) -> int:
        """Maximum length of a sequence, as far as known before the engine starts."""
        if self.engine is not None:
            return self.engine.info.max_model_len
        return min(
            self.spec.config.max_model_len or self.info.max_model_len, self.info.max_model_len
        )

    @property
    def is_usable(self) -> bool:
        return self.status is Status.READY and self.engine is not None and not self.engine.errored

    @property
    def is_evictable(self) -> bool:
        """True if it may be unloaded: no request uses it, and the operator did not pin it."""
        return self.status is Status.READY and not self.users and not self.spec.is_pinned

    def has_route(self, scope: Scope) -> bool:
        """True if a route accepts the request's path and method."""
        return any(route.matches(scope)[0] is Match.FULL for route in self.app.routes)

    def reset(self) -> None:
        """Forget the engine. Requests that run keep the state that they began with."""
        self.engine = self.engines = None
        self.state = ModelState(self.spec.config, self.spec.settings)
        self.app, self.open_files = create_api(self.state)

    def attach(self) -> None:
        """Serve requests with the engine. On the event loop."""
        if self.engine is None:
            raise RuntimeError(f"model '{self.name}' has no engine")
        self.state.attach(self.engine)
        self.engine.listen()
        self.status, self.reason = Status.READY, ""
        self.last_used = time.monotonic()

    def fail(self, reason: str) -> None:
        """Note why it could not be loaded, or why it died."""
        self.status, self.reason, self.failed_at = Status.FAILED, reason, time.monotonic()
