"""The point `tenonry.grammars`, and how the backend of the settings is found. Any process; light."""

from __future__ import annotations

from typing import Any

from tenonry.errors import PluginNotFound
from tenonry.plugin import Point
from tenonry.plugin.manager import resolve_point

GRAMMARS = Point(
    "tenonry.grammars",
    "tenonry_grammars.base:GrammarBackend",
    {"llguidance": "tenonry-grammar-llguidance", "xgrammar": "tenonry-grammar-xgrammar"},
)
DEFAULT_BACKEND = "llguidance"


def find_backend(name: str | None) -> tuple[Any, str] | None:
    """The class of the backend `name`, and what it resolved to, with its version.

    None stands for the default one, which need not be installed: then the answer is None. Raises PluginError for any
    other that cannot be used, with what there is.
    """
    try:
        found, record = resolve_point(GRAMMARS, name or DEFAULT_BACKEND)
    except PluginNotFound:
        if name is not None:
            raise
        return None
    origin = f"{record.distribution} {record.version}" if record.distribution else record.target
    return found, f"{record.name} ({origin})"


def missing_backend() -> str:
    """Command that installs the default backend."""
    return f"pip install {GRAMMARS.provider[DEFAULT_BACKEND]}"
