"""Chosen routes and their settings: read before the server starts, and where a route is built. Light; front end."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from tenonry.config import Settings, nearest
from tenonry.errors import ConfigError
from tenonry.info import PluginRecord
from tenonry.interfaces.plugin import PluginSettings
from tenonry.plugin.discovery import installed
from tenonry.plugin.manager import find_plugin, settings_of
from tenonry_commands.arguments import partial_sources
from tenonry_commands.parts import CommandPlugins
from tenonry_openai_server.points import ROUTES

DEFAULT_ROUTES = ("responses", "messages", "pooling", "page", "tenant-limits")


class RouteChoice(Settings):
    """The setting that chooses routes, read before all others."""

    route: tuple[str, ...] = ()


def default_routes() -> tuple[str, ...]:
    """Installed default routes."""
    names = {entry.name for entry in installed(ROUTES)}
    return tuple(name for name in DEFAULT_ROUTES if name in names)


def chosen_routes(args: argparse.Namespace) -> Iterator[PluginRecord]:
    """Records of the routes that flags, variables and `--config` choose. Raises ConfigError and PluginError."""
    sources = partial_sources(args, RouteChoice)
    names = sources.make(RouteChoice, {"route": default_routes()} | sources.values(RouteChoice))
    for name in names.route:
        yield find_plugin(ROUTES, name)


ROUTE_PLUGINS = CommandPlugins((ROUTES,), chosen_routes)


def route_settings(settings: Settings, names: Iterable[str]) -> dict[str, PluginSettings]:
    """Settings of each route. Raises ConfigError for a setting without a route, and PluginError."""
    models = {name: settings_of(find_plugin(ROUTES, name)) for name in names}
    known = {*type(settings).model_fields}.union(*(each.model_fields for each in models.values()))
    for name in settings.model_extra or ():
        if name not in known:
            raise ConfigError(f"unknown setting '{name}'{nearest(name, known)}")
    return {name: settings.section(model) for name, model in models.items()}
