"""Targets of a contract suite: a class, `module:Class`, `path.py:Class` or an entry-point name.

Resolved like in an engine, so a suite also detects errors that would prevent a start. Test process.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tenonry.config import EngineConfig, PluginChoice
from tenonry.info import PluginRecord
from tenonry.interfaces.plugin import Plugin
from tenonry.plugin.checks import check_plugin, load_options
from tenonry.plugin.kinds import KINDS
from tenonry.plugin.manager import PluginManager, resolve_point
from tenonry.plugin.plan import load_class
from tenonry.point import Point


def resolve_target(
    kind: str | Point,
    target: str | type[Plugin] | None,
    options: dict[str, Any] | None = None,
    config: EngineConfig | None = None,
) -> tuple[Any, BaseModel, str]:
    """(class, validated options, name) of a plugin of one of the kernel's kinds, which `config` has to suit, or of a
    point.

    Raises PluginError for targets that the kernel would reject, and TypeError for a suite without a target.
    """
    point = KINDS[kind] if isinstance(kind, str) else kind
    if target is None:
        raise TypeError(
            f'this suite names nothing to test; add the line:  {point.kind} = "my_package:MyClass"'
        )
    if callable(options):
        raise TypeError("options of this suite is a method; write a dict, or make it a property")
    if isinstance(target, str):
        choice = PluginChoice(name=target, options=options or {})
        cls: Any
        if isinstance(kind, str):
            manager = PluginManager(discover=False)
            entry = manager.resolve(kind, choice, config or EngineConfig(model="fake"))
            cls = load_class(entry)
        else:
            cls, entry = resolve_point(kind, choice)
        return cls, load_options(entry, cls), target
    entry = PluginRecord(
        kind=point.kind,
        name=target.__name__,
        target=f"{target.__module__}:{target.__qualname__}",
        options=options or {},
    )
    check_plugin(target, entry, point)
    return target, load_options(entry, target), target.__name__
