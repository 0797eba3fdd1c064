"""Parsers chosen for a chat template."""

from __future__ import annotations

import pytest

from tenonry.plugin import Point
from tenonry.plugin.manager import resolve_point
from tenonry_output_parsers.auto import CALLS, REASONING, recognised
from tenonry_output_parsers.base import OutputParser

POINT = Point("tenonry.output_parsers", OutputParser)


def find(name: str) -> type[OutputParser]:
    return resolve_point(POINT, name)[0]


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("{{ messages }}", ()),
        ("<think></think> {{ '<tool_call>' }} arguments", ("think", "hermes")),
        ("<think> <tool_call> arguments <function= <parameter=", ("think", "qwen-coder")),
        ("<tool_calls> <tool_call> arguments", ("tool-calls",)),
        ('tool_calls {\'{"name": "\' + call.name', ("llama",)),
        ("tool_calls {{ call.name + '(' }}", ("pythonic",)),
        ("<think> '｜DSML｜' 'function_calls'", ("think", "deepseek-v3.2")),
        ("<think> '｜DSML｜' '<' ~ 'tool_calls>'", ("think", "deepseek-v4")),
        ("<seed:think> <seed:tool_call> <function= <parameter=", ("seed-think", "seed-coder")),
        ("<think> <response> <tool_call> arguments", ("granite-think", "hermes")),
        ('<|channel> <channel|> <|tool_call>call: <|"|>', ("gemma-think", "gemma")),
        ("<|START_THINKING|> <|START_ACTION|> <think>", ("cohere",)),
        ("<|channel|> <|message|>", ("harmony",)),
    ],
)
def test_choice(template, names):
    assert recognised(template, find) == names


def test_all_that_are_chosen_from_exist():
    assert all(find(name).reads_calls for name in CALLS)
    assert not any(find(name).reads_calls for name in REASONING)
