"""Plugins that a start would choose, and why. Command line; imports hook modules, and chosen plugins
for their settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tenonry.config import EngineConfig
from tenonry.config.sources import environment_values, variable_of
from tenonry.info import PluginRecord
from tenonry.plugin.discovery import installed
from tenonry.plugin.kinds import HOOK_MODULES, KINDS
from tenonry.plugin.manager import PluginManager, merged, sections
from tenonry_commands.import_watch import StartWatch
from tenonry_commands.sources import Sources

MANY = {"stat_logger", "call_set"}
DEFAULT_MODEL = "demo"


class Choice(NamedTuple):
    """A chosen plugin. `origin`: its distribution and version. `why`: the setting or rule that chose it."""

    kind: str
    name: str
    origin: str
    why: str


def choices(file: str | None = None) -> list[Choice]:
    """Plugins of a start with this file and the environment. Raises ConfigError and PluginError, as a start does."""
    sources = Sources({}, EngineConfig, file=file, is_complete=False)
    values = sources.values(EngineConfig)
    config = sources.make(EngineConfig, {"model": DEFAULT_MODEL, **values})
    manager = PluginManager(config.plugins)
    records = manager.choose(config)
    with StartWatch():  # modules of plugins are imported for their settings
        merged([*sections(records, lambda: config)])  # two of them may claim one setting
        manager.call("tenonry_configured", config=config)  # hook modules may reject the settings
    found = [_choice(record, values, file) for record in records]
    active = {record.name for record in manager.hook_modules}
    for record in installed(HOOK_MODULES):
        why = "installed" if record.name in active else "installed, and idle or disabled"
        found.append(Choice(record.kind, record.name, _origin(record), why))
    return found


def _choice(record: PluginRecord, values: Mapping[str, Any], file: str | None) -> Choice:
    name = f"{record.kind}s" if record.kind in MANY else record.kind
    if record.kind not in KINDS:
        why = "installed: every one is used"
    elif name in environment_values({name: EngineConfig.model_fields[name]}, is_complete=False):
        why = variable_of(name, EngineConfig.model_fields[name])
    elif name in values:
        why = f"{name} in {file}"
    else:
        why = f"default of {name}"
    return Choice(record.kind, record.name, _origin(record), why)


def _origin(record: PluginRecord) -> str:
    return f"{record.distribution} {record.version}".strip() or record.path
