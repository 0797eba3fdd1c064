"""The conformance suite over calls in Python's notation, and its values as JSON."""

from __future__ import annotations

import ast
import json
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.events import CallArguments, CallEnd, CallStart, TextDelta
from tenonry_output_parsers.python_values import MAX_DEPTH, python_value
from tenonry_testkit.output_parser import TOOLS, Answer, OutputParserContract


def call(name: str, arguments: str) -> tuple:
    return (CallStart(name), CallArguments(arguments), CallEnd())


ADD = call("add", '{"a": 1, "b": 2}')


class TestPythonic(OutputParserContract):
    output_parser = "pythonic"
    tools = (*TOOLS, Tool("ns.look/up"))
    answers = (
        Answer("[add(a=1, b=2)]", ADD),
        Answer(
            "<|python_start|>[add(a=1, b=2), say(text='it\\'s')]<|python_end|>",
            (*ADD, *call("say", '{"text": "it\'s"}')),
        ),
        Answer('[say(text="a \\"b\\" ]")]', call("say", '{"text": "a \\"b\\" ]"}')),
        Answer('[say(text="a "b" c")]', call("say", '{"text": "a \\"b\\" c"}')),
        Answer('[add(a="1", b="x")]', call("add", '{"a": 1, "b": "x"}')),
        Answer(
            "[ns.look/up(x=[True, None, {'k': (1.5, .5)}], y=New York, z=-0x10)]",
            call("ns.look/up", '{"x": [true, null, {"k": [1.5, 0.5]}], "y": "New York", "z": -16}'),
        ),
        Answer("[ns.look/up()]\nDone.", (*call("ns.look/up", "{}"), TextDelta("Done."))),
        Answer("[sub(a=1)]", (TextDelta("[sub(a=1)]"),)),
        Answer("[add(1, 2)]", (TextDelta("[add(1, 2)]"),)),
        Answer("add(a=1)", (TextDelta("add(a=1)"),)),
        Answer("[add] [1]", (TextDelta("[add] [1]"),)),
    )


class TestLfm2(OutputParserContract):
    output_parser = "lfm2"
    answers = (
        Answer(
            'So.<|tool_call_start|>[add(a=1, b=2), say(text="x")]<|tool_call_end|>Done.',
            (TextDelta("So."), *ADD, *call("say", '{"text": "x"}'), TextDelta("Done.")),
        ),
        Answer(
            "<|tool_call_start|>\n```python\nadd(a=1,b=2)\nsay(text='x')\n```\n<|tool_call_end|>",
            (*ADD, *call("say", '{"text": "x"}')),
        ),
        Answer(
            '<|tool_call_start|>[{"name": "add", "arguments": {"a": 1, "b": 2}}]<|tool_call_end|>',
            ADD,
        ),
        Answer("<|tool_call_start|>none", (TextDelta("<|tool_call_start|>none"),)),
    )


class TestOlmo(OutputParserContract):
    output_parser = "olmo"
    answers = (
        Answer(
            "<function_calls>\nadd(a=1, b=2)\nsay(text='''x\n'y''')\n</function_calls>",
            (*ADD, *call("say", '{"text": "x\\n\'y"}')),
        ),
    )
    effort = 0.4


class TestValues:
    KINDS: ClassVar = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text("ab'\"\\\n\té🦊,)]}: ", max_size=12)
    )

    @given(
        st.recursive(
            KINDS,
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text("k'\" ", max_size=3), inner, max_size=3)
            ),
            max_leaves=8,
        )
    )
    def test_what_python_prints_is_the_value(self, value):
        container = [value]
        assert json.loads(python_value(repr(container))) == container

    @pytest.mark.parametrize(
        "text",
        [
            r"['a\x41\u00e9\U0001F98A\n\\']",
            "('a', \"b\")",
            "{2: 2, True: 'x', None: 1.5}",
            "['''a\n'b''']",
            "[1_000, 0b11, 1e3, .5, -7.]",
        ],
    )
    def test_as_python_reads_it(self, text):
        expected = ast.literal_eval(text)
        if isinstance(expected, dict):
            expected = {str(key): value for key, value in expected.items()}
        found = json.loads(python_value(text))
        assert found == (list(expected) if isinstance(expected, tuple) else expected)

    def test_an_escape_that_python_does_not_know_stays(self):
        assert json.loads(python_value(r"['\q']")) == ["\\q"]

    @pytest.mark.parametrize(
        "text",
        ["", "x", "[", "[1", "{'a'}", "[1] 2", "{'a': }", "['\\u12']", "[" * (MAX_DEPTH + 1)],
    )
    def test_no_value(self, text):
        assert python_value(text) is None

    @pytest.mark.parametrize(
        "text", ["__import__('os').system('x')", "9**9**9", "nan", "9" * 5000 + "x"]
    )
    def test_nothing_is_evaluated(self, text):
        found = json.loads(python_value(f"[{text}]") or '""')
        assert found in ([text], "")
