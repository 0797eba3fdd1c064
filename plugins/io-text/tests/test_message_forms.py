"""Older forms of messages render as those of today, offline as over HTTP."""

from __future__ import annotations

import copy

import pytest
from chat_templates import text_of

USER = {"role": "user", "content": "hi"}
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.type }} {{ c.function.name }} {{ c.function.arguments | tojson }}]"
    "{% endfor %};{% endfor %}"
)


def call(arguments="{}"):
    function = {"name": "add", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


def custom(value):
    return {
        "role": "assistant",
        "tool_calls": [{"type": "custom", "custom": {"name": "add", **value}}],
    }


def result(content, role="tool"):
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("older", "today"),
    [
        ({"role": "developer", "content": "x"}, {"role": "system", "content": "x"}),
        ({"role": "user", "content": [{"text": "x"}]}, {"role": "user", "content": "x"}),
        ({"role": "user", "content": ["x"]}, {"role": "user", "content": "x"}),
        (
            {"role": "assistant", "function_call": {"name": "add", "arguments": '{"a": 1}'}},
            call('{"a": 1}'),
        ),
        ({**call(), "function_call": {"name": "other", "arguments": "{}"}}, call()),
        (custom({"input": "x"}), call({"input": "x"})),
        (custom({}), call({"input": ""})),
        (result("3", "function"), result("3")),
        (result({"a": 1}), result('{"a": 1}')),
        (result(["é", 2]), result('["é", 2]')),
        (result(3.5), result("3.5")),
        (result(True, "function"), result("true")),
        (result([{"type": "text", "text": "3"}]), result("3")),
    ],
)
def test_both_render_alike(chat, older, today):
    given = copy.deepcopy(older)
    rendered = text_of(chat(TEMPLATE), [USER, older, USER])
    assert rendered == text_of(chat(TEMPLATE), [USER, today, USER])
    assert "add" in rendered or "tool_calls" not in today
    assert older == given


@pytest.mark.parametrize("call", [5, {}, {"custom": 5}, {"custom": {}, "function": None}])
def test_what_is_no_call_is_refused_by_place(chat, call):
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    with pytest.raises(ValueError, match=r"messages\[1\].tool_calls\[0\]"):
        chat(TEMPLATE).render_chat([USER, message])
