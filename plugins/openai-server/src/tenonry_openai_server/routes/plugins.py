"""The extension point `tenonry.routes`: third-party routes under /plugins/<name>, behind the same checks. Front end.

An entry point names a callable: it gets a RouteContext and returns an ASGI application, such as a FastAPI or Starlette
router. It is called before the model loads; the engine is there once the server is ready.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.types import ASGIApp

from tenonry.config import EngineConfig
from tenonry.errors import PluginError
from tenonry.plugin.manager import resolve_point
from tenonry_openai_server.points import ROUTES
from tenonry_openai_server.state import ServerState

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class RouteContext:
    """All that a route plugin may know."""

    __slots__ = ("_state", "config", "name", "prefix")

    def __init__(self, name: str, state: ServerState) -> None:
        self.name, self.prefix = name, f"/plugins/{name}"
        self.config: EngineConfig = state.config
        self._state = state

    @property
    def engine(self) -> AsyncLLM:
        """The engine. Raises an exception that answers 503 while the server takes no requests."""
        return self._state.admit()


def mount_plugins(api: FastAPI, state: ServerState) -> None:
    """Mount the plugins that the operator chose. Raises PluginError for a bad name, a collision or a failure."""
    taken: dict[str, str] = {}
    for choice in state.settings.route:
        factory, entry = resolve_point(ROUTES, choice)
        name = mount_name(choice)
        if name in taken:
            raise PluginError(
                f"routes '{taken[name]}' and '{choice}' both want /plugins/{name}; choose one of them"
            )
        taken[name] = choice
        api.mount(
            f"/plugins/{name}",
            _build(factory, RouteContext(name, state), choice, entry.distribution),
        )


def mount_name(choice: str) -> str:
    """The name under /plugins: the entry point's, or the last part of the module of `module:function`."""
    name = choice
    if ":" in choice:
        path = choice.rpartition(":")[0].removesuffix(".py")
        name = re.split(r"[./\\]", path)[-1].lower()
    if not _NAME.fullmatch(name):
        raise PluginError(
            f"route '{choice}': '{name}' is no name for an URL; use a-z, 0-9, - and _"
        )
    return name


def _build(
    factory: Callable[[RouteContext], ASGIApp],
    context: RouteContext,
    choice: str,
    distribution: str,
) -> ASGIApp:
    origin = f"route '{choice}'" + (f" ({distribution})" if distribution else "")
    if not callable(factory):
        raise PluginError(
            f"{origin} is no callable; name a function that takes a RouteContext and returns an app"
        )
    try:
        app = factory(context)
    except Exception as error:
        raise PluginError(
            f"{origin} could not be built: {type(error).__name__}: {error}"
        ) from error
    if not callable(app):
        raise PluginError(f"{origin} returned {type(app).__name__}, which is no ASGI application")
    return app
