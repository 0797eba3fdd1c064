"""What an exception says to the author of a plugin."""

from __future__ import annotations

from tenonry.errors import PluginFault


def raised() -> ValueError:
    try:
        raise ValueError("no such colour")  # the line that is named
    except ValueError as error:
        return error


class TestPluginFault:
    def test_it_names_plugin_origin_call_cause_and_place(self):
        """The one line that a user of `tenonry generate` sees is enough to open the right file."""
        place = f"{__file__}:{raised.__code__.co_firstlineno + 2}"
        text = f"plugin mine (acme 2) failed in schedule: ValueError: no such colour ({place})"
        assert str(PluginFault("mine", "acme", "2", "schedule", raised())) == text

    def test_a_cause_that_was_not_raised_here_has_no_place(self):
        text = "plugin mine (no distribution) failed in load: ValueError: elsewhere"
        assert str(PluginFault("mine", "", "", "load", ValueError("elsewhere"))) == text
