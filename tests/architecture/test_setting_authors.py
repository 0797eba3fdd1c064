"""Every setting is declared once: parts that share one derive their models from the same class."""

from __future__ import annotations

import inspect

from tenonry.config import EngineConfig
from tenonry.interfaces.plugin import PluginSettings
from tenonry.plugin.discovery import installed
from tenonry.plugin.kinds import KINDS
from tenonry.plugin.manager import settings_of


def authors(models):
    """The classes that declare each setting themselves, by name."""
    found = {}
    for model in models:
        for cls in model.__mro__:
            for name in inspect.get_annotations(cls).keys() & model.model_fields.keys():
                found.setdefault(name, set()).add(f"{cls.__module__}.{cls.__qualname__}")
    return found


def test_every_setting_has_one_author():
    records = [record for kind in KINDS.values() for record in installed(kind)]
    models = [settings_of(record) for record in records]
    found = authors([EngineConfig, *models])
    assert {"drafter", "lora_modules", "grammar_backend"} <= found.keys()
    assert {name: classes for name, classes in found.items() if len(classes) > 1} == {}


def test_a_second_author_is_found():
    class One(PluginSettings):
        width: int = 1

    class Derived(One):
        pass

    class Other(PluginSettings):
        width: int = 1

    assert len(authors([One, Derived])["width"]) == 1
    assert len(authors([One, Derived, Other])["width"]) == 2
