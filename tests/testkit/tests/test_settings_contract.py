"""The suite of settings, over models that are right and over broken ones."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from tenonry.config import PluginChoice, setting
from tenonry.interfaces.plugin import PluginSettings
from tenonry.plugin.kinds import REQUEST_CHECKS
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.settings import SettingsContract


class Good(PluginSettings):
    """Settings of a plugin."""

    keep_mib: int = setting(default=64, ge=0)
    """Memory to keep, in MiB."""
    keep_kind: Literal["host", "disk"] = "host"
    """Place that keeps it."""
    keep_names: tuple[str, ...] = ()
    """Names to keep."""

    def uses(self, options: Any) -> Any:
        return [(REQUEST_CHECKS, PluginChoice(name=name)) for name in self.keep_names]


class TestGood(SettingsContract):
    settings = Good
    examples: ClassVar = {"keep_mib": "1k", "keep_kind": "disk", "keep_names": "a,b"}


class TestByName(TestGood):
    settings = f"{__name__}:Good"


class TestNone(SettingsContract):
    """Most plugins have no settings."""

    settings = PluginSettings


class NoSettings(BaseModel):
    caught_by: ClassVar = "test_it_is_a_model_of_settings"


class Required(PluginSettings):
    caught_by: ClassVar = "test_every_setting_has_a_default"
    keep_mib: int
    """Memory to keep."""


class BadDefault(PluginSettings):
    caught_by: ClassVar = "test_defaults_are_valid"
    keep_mib: int = Field(default=-1, ge=0)
    """Memory to keep."""


class DefaultOfAnotherType(PluginSettings):
    caught_by: ClassVar = "test_defaults_are_valid"
    keep_kind: Literal["host", "disk"] = "memory"  # type: ignore[assignment]
    """Place that keeps it."""


class Unexplained(PluginSettings):
    caught_by: ClassVar = "test_every_setting_is_described"
    keep_mib: int = 1


class Taken(PluginSettings):
    caught_by: ClassVar = "test_names_are_not_those_of_tenonry"
    max_num_seqs: int = 1
    """Requests at once."""


class Capitals(PluginSettings):
    caught_by: ClassVar = "test_names_become_flags"
    keepMiB: int = 1  # noqa: N815
    """Memory to keep."""


class NeedsMore(PluginSettings):
    caught_by: ClassVar = "test_they_are_set_as_those_of_the_kernel"
    keep_mib: int = 1
    """Memory to keep."""

    def model_post_init(self, _: Any) -> None:
        if "keep_mib" in self.model_fields_set:
            raise ValueError("keep_mib is measured")


class IgnoresText(PluginSettings):
    caught_by: ClassVar = "test_examples_can_be_typed"
    model_config = ConfigDict(strict=True)
    keep_share: float = 0.5
    """Share of the memory to keep."""


class Mutable(PluginSettings):
    caught_by: ClassVar = "test_values_do_not_change"
    model_config = ConfigDict(frozen=False)
    keep_mib: int = 1
    """Memory to keep."""


class TakesAnything(PluginSettings):
    caught_by: ClassVar = "test_unknown_settings_are_refused"
    model_config = ConfigDict(extra="allow")


class Thing:
    """A value that is no text."""


class Unsendable(PluginSettings):
    caught_by: ClassVar = "test_defaults_are_sent_to_engines_as_text"
    model_config = ConfigDict(arbitrary_types_allowed=True)
    keep_thing: Thing = Thing()
    """Thing to keep."""


class Prints(PluginSettings):
    caught_by: ClassVar = "test_they_read_nothing_but_what_they_are_given"

    def model_post_init(self, _: Any) -> None:
        print("settings are read")


class UsesNames(PluginSettings):
    caught_by: ClassVar = "test_used_plugins_are_points_and_choices"

    def uses(self, options: Any) -> Any:
        return ["batching"]


class UsesTexts(PluginSettings):
    caught_by: ClassVar = "test_used_plugins_are_points_and_choices"

    def uses(self, options: Any) -> Any:
        return [("scheduler", "batching")]


class UsesWithoutLooking(PluginSettings):
    caught_by: ClassVar = "test_used_plugins_are_points_and_choices"

    def uses(self, options: Any) -> Any:
        return [(REQUEST_CHECKS, PluginChoice(name=options["name"]))]


BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.broken("settings")
def test_broken_ones_are_caught(broken):
    examples = {"keep_share": "0.25"} if broken is IgnoresText else {}
    suite = type("Suite", (SettingsContract,), {"settings": broken, "examples": examples})
    assert broken.caught_by in failing_tests(suite, [broken.caught_by])


def test_every_test_of_the_suite_catches_one():
    tests = {name for name in dir(SettingsContract) if name.startswith("test_")}
    assert tests == {broken.caught_by for broken in BROKEN}
