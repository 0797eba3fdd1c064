"""The page of settings."""

from __future__ import annotations

import importlib
import inspect

from pydantic import BaseModel

from reference_pages.text import NOTICE, default_text
from tenonry.config import EngineConfig, fact
from tenonry.config.sources import ENV_PREFIX
from tenonry.plugin.discovery import installed
from tenonry.plugin.kinds import EVERY_INSTALLED, KINDS
from tenonry.plugin.manager import settings_of
from tenonry.sampling_params import SamplingParams
from tenonry_commands.flags import flags_of
from tenonry_commands.setting_texts import setting_texts

# What is typed for a setting without a flag of its name.
NO_FLAG = {
    "model": "MODEL",
    "models": "none",
    "process_note": "none",
    "plugins": "`--allow-plugin`, `--disable-plugin`",
}


def config_page() -> str:
    """Every field of EngineConfig, of the installed plugins, of ServerConfig, of HostConfig and of SamplingParams."""
    from tenonry_openai_server.hosting.settings import HostConfig
    from tenonry_openai_server.settings import ServerConfig

    parts = [
        "# Configuration\n",
        NOTICE,
        inspect.getdoc(importlib.import_module("tenonry.config")) or "",
        "",
    ]
    parts += ["## Engine\n", *_settings_table(EngineConfig)]
    parts += ["", f"Each field is also read from the environment: `{ENV_PREFIX}MAX_NUM_SEQS=64`.\n"]
    parts += [
        "## Plugins\n",
        "What each plugin adds where it is chosen, with flags, variables and file alike.\n",
    ]
    for title, settings in _plugin_settings():
        parts += [f"### {title}\n", *_settings_table(settings), ""]
    parts += [
        "## Server\n",
        "What `tenonry serve` has besides, with flags, variables and file alike.\n",
    ]
    parts += [*_settings_table(ServerConfig), ""]
    parts += [
        "## Several models\n",
        "What `tenonry serve` has for several models in one server; `models` only in the file of `--config`.\n",
    ]
    parts += [*_settings_table(HostConfig), ""]
    parts += [
        "## Sampling\n",
        inspect.getdoc(SamplingParams) or "",
        "",
        "| field | default |",
        "|---|---|",
    ]
    for name, default in zip(
        SamplingParams.__struct_fields__, SamplingParams.__struct_defaults__, strict=True
    ):
        parts.append(f"| `{name}` | {default_text(default)} |")
    return "\n".join(parts) + "\n"


def _plugin_settings() -> list[tuple[str, type[BaseModel]]]:
    """The models of settings of all plugins, each once, under the plugins that have it."""
    from tenonry_openai_server.points import ROUTES

    found: dict[type[BaseModel], list[str]] = {}
    for point in (*KINDS.values(), *EVERY_INSTALLED, ROUTES):
        for record in installed(point):
            settings = settings_of(record)
            if settings.model_fields:
                kind = record.kind.replace("_", " ")
                found.setdefault(settings, []).append(
                    f"{kind} `{record.name}` ({record.distribution})"
                )
    return [(", ".join(names), settings) for settings, names in found.items()]


def _settings_table(model: type[BaseModel]) -> list[str]:
    """One row per field, with the flags that `fact` knows of it."""
    rows = ["| field | flag | default | meaning |", "|---|---|---|---|"]
    texts = setting_texts(model)
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else default_text(field.default)
        flags = ", ".join(f"`{flag}`" for flag in flags_of(name, field))
        flag = flags if fact(field, "flag") is not None else NO_FLAG[name]
        rows.append(f"| `{name}` | {flag} | {default} | {field.description or texts[name]} |")
    return rows
