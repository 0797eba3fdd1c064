"""Faults as text: accepted forms, and error messages of rejected ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.errors import ConfigError, EngineDeadError
from tenonry_failpoints.borders import names
from tenonry_failpoints.faults import parse

NAME = "engine.before_execute"


@given(
    st.sampled_from(sorted(names())),
    st.sampled_from(["", "engine 1", "front end"]),
    st.sampled_from(["kill", "stop", "exit", "exit:3", "raise", "raise:KeyError", "sleep:0.5"]),
    st.integers(0, 99),
)
def test_what_is_written_is_read(name, process, action, hit):
    where = f"[{process}]" if process else ""
    when = f"@{hit}" if hit else ""
    text = f"{name}{where}={action}{when}"
    first, second = parse(f" {text} ;{text};")
    assert (first.name, first.process, first.hit, first.text) == (name, process, hit, text)
    assert second[:3] == first[:3]


def test_nothing_is_no_fault():
    assert parse("") == parse(" ; ") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("engine.before_exekute=kill", "did you mean engine.before_execute.*there are fleet.before"),
        (NAME, "is no fault; write NAME"),
        (f"{NAME}=kill@", "is no fault"),
        (f"{NAME}=kill@0", "the first time is @1"),
        (f"{NAME}=explode", "no action 'explode'; there are kill, stop, exit, raise, sleep"),
        (f"{NAME}=kill:9", "kill and stop take nothing"),
        (f"{NAME}=exit:256", "a number from 0 to 255"),
        (f"{NAME}=exit:-1", "a number from 0 to 255"),
        (f"{NAME}=sleep", "give seconds to sleep"),
        (f"{NAME}=sleep:nan", "give seconds to sleep"),
        (f"{NAME}=sleep:inf", "give seconds to sleep"),
        (f"{NAME}=sleep:-1", "give seconds to sleep"),
        (f"{NAME}=raise:int", "'int' is no exception"),
        (f"{NAME}=raise:SystemExit", "'SystemExit' is no exception"),
        (f"{NAME}=raise:PluginFault", "'PluginFault' is no exception .* made of a text"),
    ],
)  # fmt: skip
def test_the_rest_is_refused(text, expected):
    with pytest.raises(ConfigError, match=rf"TENONRY_FAILPOINTS: .*{expected}"):
        parse(f"{NAME}=kill@7;{text}")


@pytest.mark.parametrize("kind", [RuntimeError, OSError, EngineDeadError])
def test_the_exception_says_where_it_comes_from(kind):
    (fault,) = parse(f"{NAME}=raise:{kind.__name__}")
    with pytest.raises(kind, match=r"a failpoint was set: engine\.before_execute"):
        fault.happen()
