"""The point `tenonry.drafters`, and how the drafter of the settings is built. Any process; light."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry.plugin import Point
from tenonry.plugin.checks import load_options
from tenonry.plugin.manager import blamed, resolve_point

if TYPE_CHECKING:
    from tenonry.config import PluginChoice
    from tenonry.info import PluginRecord
    from tenonry_drafters.base import Drafter, DrafterContext

DRAFTERS = Point(
    "tenonry.drafters",
    "tenonry_drafters.base:Drafter",
    {"ngram": "tenonry-drafters", "model": "tenonry-drafters"},
    kind="drafter",
)


def find_drafter(choice: PluginChoice) -> tuple[type[Drafter], PluginRecord]:
    """Resolve the class named by a setting, and its record. Raises PluginError with the installed names."""
    found, record = resolve_point(DRAFTERS, choice)
    return found, record


def build_drafter(found: type[Drafter], record: PluginRecord, context: DrafterContext) -> Drafter:
    """An instance with its options. Raises PluginError, or ConfigError if it cannot work."""
    context.options = load_options(record, found)
    with blamed(record, "its constructor"):
        return found(context)
