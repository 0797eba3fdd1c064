"""Functions as plugins: resolved like their owner does, by name or as objects. Test process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenonry.info import PluginRecord
from tenonry.plugin.checks import check_plugin
from tenonry.plugin.manager import resolve_point
from tenonry.point import Point


def resolve_function(point: Point, target: str | Callable[..., Any] | None) -> Any:
    """Return the function of a point, by name or unchanged. Raises TypeError for a suite without one, PluginError for a
    wrong one.
    """
    if target is None:
        raise TypeError(
            f'this suite names nothing to test; add the line:  {point.kind} = "my_package:my_function"'
        )
    if isinstance(target, str):
        return resolve_point(point, target)[0]
    name = getattr(target, "__name__", repr(target))
    check_plugin(target, PluginRecord(point.kind, name, f"{target.__module__}:{name}"), point)
    return target


def given(function: Any) -> Any:
    """Return the function itself, not a method of the suite that names it as an attribute."""
    return getattr(function, "__func__", function)
