"""Text of an exception for the author of a plugin."""

from __future__ import annotations

import asyncio
import json
import signal
import threading

import pytest

from tenonry.errors import PluginFault, is_interrupt


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

    def test_lines_of_the_standard_library_are_not_its_place(self):
        def cause() -> ValueError:
            try:
                json.loads("{")
            except ValueError as error:
                return error
            raise AssertionError

        place = f"{__file__}:{cause.__code__.co_firstlineno + 2}"
        assert str(PluginFault("mine", "acme", "2", "load", cause())).endswith(f" ({place})")

    def test_a_cause_that_was_not_raised_here_has_no_place(self):
        text = "plugin mine (no distribution) failed in load: ValueError: elsewhere"
        assert str(PluginFault("mine", "", "", "load", ValueError("elsewhere"))) == text


class StopProgram(BaseException):
    """Raised by a signal handler, as while engines start."""


class TestIsInterrupt:
    @pytest.mark.parametrize("error", [StopProgram(), asyncio.CancelledError()])
    def test_what_ends_a_program_or_a_task_is_one(self, error):
        assert is_interrupt(error)

    @pytest.mark.parametrize("error", [ValueError(), SystemExit(1), GeneratorExit()])
    def test_what_a_plugin_raises_is_none(self, error):
        assert not is_interrupt(error)

    def test_ctrl_c_is_one_where_python_raises_it(self):
        assert threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            assert is_interrupt(KeyboardInterrupt())
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            assert not is_interrupt(KeyboardInterrupt())
        finally:
            signal.signal(signal.SIGINT, before)
