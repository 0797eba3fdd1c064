"""The extension point `tenonry.routes`: third-party routes under /plugins/<name>, behind the same checks. Front end.

An entry point names a callable: it receives a RouteContext and returns an ASGI application, such as a FastAPI or
Starlette router. It is called before the model loads; the engine is available once the server is ready. Its attributes:

- `Settings`: a PluginSettings, set by flags, variables and file like the server's; the context has an instance.
- `at_root`: it returns an APIRouter, whose routes have their own paths, such as /v1/responses.
- `open_paths`: those of them that GET reads without a key, for static files that are the same for everyone.
- `admission`: it admits requests for tokens of all routes, see `tenonry_openai_server.admission`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from tenonry.config import EngineConfig
from tenonry.errors import PluginError
from tenonry.info import PluginRecord
from tenonry.interfaces.plugin import PluginSettings
from tenonry.plugin.manager import blamed, resolve_point, settings_of
from tenonry_openai_server.openapi import Request, describe
from tenonry_openai_server.points import ROUTES
from tenonry_openai_server.route_settings import route_settings
from tenonry_openai_server.routes.door import ChatDoor
from tenonry_openai_server.state import ServerState

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class RouteContext:
    """Context of a route plugin. `settings`: an instance of its `Settings`."""

    __slots__ = ("_state", "chats", "config", "name", "prefix", "settings")

    def __init__(
        self,
        name: str,
        state: ServerState,
        prefix: str,
        model: type[PluginSettings] = PluginSettings,
    ) -> None:
        self.name = name
        self.prefix = prefix
        self.settings = state.settings.section(model)
        self.config: EngineConfig = state.config
        self.chats = ChatDoor()
        self._state = state

    @property
    def engine(self) -> AsyncLLM:
        """Return the engine. Raises an exception for 503 while the server is not ready."""
        return self._state.admit()

    @property
    def needs_key(self) -> bool:
        """True if requests need an API key."""
        return bool(self._state.settings.api_key)

    def describe(self, summary: str, request: Request, *, text: str = "") -> dict[str, Any]:
        """Keyword arguments of a route decorator, for a route that answers with an object and has errors in the
        server's shape. `request`: a type of the body, or its JSON schema, which may refer to the server's, such as
        "#/components/schemas/ChatRequest". `text`: the media type of an answer that is no JSON.
        """
        return describe(summary, request, {"type": "object"}, text=text)


def mount_plugins(
    api: FastAPI, state: ServerState, own: Sequence[APIRouter]
) -> tuple[set[str], set[str]]:
    """Mount the configured plugins, in addition to the server's `own` routes.

    Returns the paths of all routes that are not below /plugins, and those that GET reads without a key. Raises
    PluginError for a bad name, a collision or a failure.
    """
    paths = {path for router in own for path in _paths(router)}
    taken: dict[str, str] = {}
    open_files: set[str] = set()
    route_settings(state.settings, state.settings.route)  # they are right
    for choice in state.settings.route:
        factory, entry = resolve_point(ROUTES, choice)
        name = mount_name(choice)
        if name in taken:
            raise PluginError(
                f"routes '{taken[name]}' and '{choice}' both claim /plugins/{name}; choose "
                f"one of them"
            )
        taken[name] = choice
        is_at_root = bool(getattr(factory, "at_root", False))
        prefix = "" if is_at_root else f"/plugins/{name}"
        context = RouteContext(name, state, prefix, settings_of(entry))
        app = _build(factory, context, entry)
        if is_at_root:
            own_paths = _include(api, app, choice, paths)
            open_files |= own_paths & set(getattr(factory, "open_paths", ()))
        else:
            api.mount(prefix, app)
    return {path for path, _ in paths}, open_files


def _paths(router: APIRouter) -> Iterator[tuple[str, str]]:
    """(path, method) of each of its routes."""
    for route in router.routes:
        for method in getattr(route, "methods", None) or ():
            yield getattr(route, "path", ""), method


def _include(api: FastAPI, app: object, choice: str, taken: set[tuple[str, str]]) -> set[str]:
    """Add the routes of a router at their own, unused paths, and return the paths with GET.

    Raises PluginError.
    """
    if not isinstance(app, APIRouter):
        raise PluginError(
            f"route '{choice}' sets at_root and returned {type(app).__name__}; return an APIRouter"
        )
    wanted = set(_paths(app))
    clash = min(wanted & taken, default=None)
    if clash is not None:
        raise PluginError(f"route '{choice}' claims {clash[1]} {clash[0]}, which is taken")
    taken |= wanted
    api.include_router(app)
    return {path for path, method in wanted if method == "GET"}


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
    factory: Callable[[RouteContext], ASGIApp], context: RouteContext, entry: PluginRecord
) -> ASGIApp:
    if not callable(factory):
        raise PluginError(
            f"{entry.label()} is no callable; name a function that takes a RouteContext and returns an app"
        )
    with blamed(entry, "the construction of its route"):
        app = factory(context)
    if not callable(app):
        raise PluginError(
            f"{entry.label()} returned {type(app).__name__}, which is no ASGI application; return an APIRouter"
        )
    return app
