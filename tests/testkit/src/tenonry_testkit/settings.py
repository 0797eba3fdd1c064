"""The conformance suite of settings, the models named in the group `tenonry.settings`. Test process.

from tenonry_testkit.settings import SettingsContract

class TestMine(SettingsContract):
    settings = "my_package.settings:MySettings"

Needs the flags of the command line: install `tenonry-commands`.
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from tenonry.config import EngineConfig, PluginChoice
from tenonry.interfaces.plugin import PluginSettings
from tenonry.point import Point
from tenonry_testkit.effects import watched

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


class SettingsContract:
    """Subclass in a test module and name the `settings`: "module:Class" or the class.

    `examples`: non-default values of each setting, in user syntax.
    """

    settings: ClassVar[str | type[PluginSettings] | None] = None
    examples: ClassVar[Mapping[str, str]] = {}

    # ------------------------------------------------------------------ tools, for tests of your own
    def model(self) -> type[PluginSettings]:
        """The model under test."""
        if self.settings is None:
            raise TypeError(
                'this suite names nothing to test; add the line:  settings = "my_package.settings:MySettings"'
            )
        found: Any = self.settings
        return pkgutil.resolve_name(found) if isinstance(found, str) else found

    def section(self, **values: Any) -> PluginSettings:
        """Return its settings from `config.section`."""
        return EngineConfig(model="fake", **values).section(self.model())

    # ------------------------------------------------------------------ the contract
    def test_it_is_a_model_of_settings(self) -> None:
        """A subclass of PluginSettings."""
        model = self.model()
        assert inspect.isclass(model)
        assert issubclass(model, PluginSettings), f"{model} is no PluginSettings"

    def test_every_setting_has_a_default(self) -> None:
        """A plugin is chosen before its settings are known."""
        for name, field in self.model().model_fields.items():
            assert not field.is_required(), f"{name} has no default"

    def test_defaults_are_valid(self) -> None:
        """A default passes the checks of its own setting, which pydantic skips."""
        model = self.model()
        for name in model.model_fields:
            model.model_validate({name: getattr(model(), name)})

    def test_every_setting_is_described(self) -> None:
        """The text under it, or `description`, is its help."""
        from tenonry_commands.setting_texts import setting_texts

        texts = setting_texts(self.model())
        for name, field in self.model().model_fields.items():
            assert (field.description or texts.get(name, "")).strip(), f"{name} has no text"

    def test_names_are_not_those_of_tenonry(self) -> None:
        """Names are shared with the kernel's settings."""
        taken = self.model().model_fields.keys() & EngineConfig.model_fields.keys()
        assert not taken, f"tenonry itself has the settings {sorted(taken)}"

    def test_names_become_flags(self) -> None:
        """Small letters, digits and single underscores: `max_size` is --max-size and TENONRY_MAX_SIZE."""
        for name in self.model().model_fields:
            assert NAME.fullmatch(name), f"{name}: write small letters, digits and underscores"

    def test_they_are_set_as_those_of_the_kernel(self) -> None:
        """Keyword arguments of the configuration set them; the plugin reads `config.section`."""
        default = self.section()
        for name in self.model().model_fields:
            assert getattr(self.section(**{name: getattr(default, name)}), name) == getattr(
                default, name
            )

    def test_examples_can_be_typed(self) -> None:
        """Text of a flag or variable is parsed as the type of the setting, and differs from the default."""
        for name, text in self.examples.items():
            value = getattr(self.section(**{name: text}), name)
            assert value != getattr(self.section(), name), f"{name}={text} is the default"

    def test_values_do_not_change(self) -> None:
        """Several processes read them."""
        made = self.model()()
        for name in self.model().model_fields:
            with pytest.raises((ValidationError, TypeError, AttributeError)):
                setattr(made, name, getattr(made, name))

    def test_unknown_settings_are_refused(self) -> None:
        """A misspelt name is an error."""
        with pytest.raises(ValidationError):
            self.model().model_validate({"no_setting_of_this_name": 1})

    def test_defaults_are_sent_to_engines_as_text(self) -> None:
        """Serialised settings are equal in another process."""
        model = self.model()
        text = json.dumps(model().model_dump(mode="json"))
        assert model.model_validate(json.loads(text)) == model()

    def test_they_read_nothing_but_what_they_are_given(self) -> None:
        """Building them has no effects; variables and files are read by the kernel."""
        with watched() as effects:
            self.model()()
        assert not effects, effects

    def test_used_plugins_are_points_and_choices(self) -> None:
        """`uses` yields pairs, also for unchecked options."""
        for pair in self.model()().uses({}):
            assert isinstance(pair, tuple), f"uses yields {pair!r}, which is no pair"
            point, choice = pair
            assert isinstance(point, Point), f"uses yields {point!r}, which is no Point"
            assert isinstance(choice, PluginChoice), f"uses yields {choice!r}, no PluginChoice"
