"""Messages in the forms that templates read: content, calls, reasoning, ids."""

from __future__ import annotations

import json
import re

import pytest
from chat_templates import (
    CALL,
    CALLS_IN_CONTENT,
    CHATML,
    EITHER,
    EITHER_OR,
    FIRST_PART_OF_SYSTEM,
    ITEMS,
    LOOPED_CONTENT,
    NINE_CHARACTERS,
    NULL_BESIDE_CALLS,
    ONE_PART,
    PARTS,
    PLAN,
    PRINTED_CONTENT,
    THINKING,
    THINKING_PARTS,
    TOOLS,
    text_of,
)

from tenonry.errors import RequestError
from tenonry_io_text import sandbox
from tenonry_io_text.forms import ContentForm, EmptyContent, find_forms
from tenonry_io_text.sandbox import ChatTemplate, TemplateTimeout

USER = {"role": "user", "content": "hi"}
TWO_PARTS = [{"type": "text", "text": "AAA"}, {"type": "text", "text": "BBB"}]


def forms_of(template):
    return find_forms(ChatTemplate(template), {"bos_token": "<s>"}, with_tools=False)


def answer(arguments, **fields):
    """An assistant's message with one call."""
    function = {"name": "add", "arguments": arguments}
    call = {"id": "call_1234567890", "type": "function", "function": function}
    return {"role": "assistant", "tool_calls": [call], **fields}


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (CHATML, ContentForm.TEXT),
        (TOOLS, ContentForm.TEXT),
        (CALLS_IN_CONTENT, ContentForm.TEXT),
        (PARTS, ContentForm.PARTS),
        (EITHER, ContentForm.EITHER),
        (ONE_PART, ContentForm.ONE_PART),
        ("{% for p in messages[0]['content'] | list %}{{ p.text }}{% endfor %}", ContentForm.PARTS),
        (
            "{% set c = messages[0].content %}{% for p in c %}{{ p.text }}{% endfor %}",
            ContentForm.PARTS,
        ),
        ("{% macro show(c) %}{{ c | tojson }}{% endmacro %}{{ show(messages[0].content) }}", ContentForm.TEXT),
    ],
)  # fmt: skip
def test_form_of_a_users_content(template, form):
    assert forms_of(template).of_role("user") is form


def test_each_role_has_a_form_of_its_own(chat):
    """A template that prints the first part of a system prompt alone gets all of it as one string."""
    forms = forms_of(FIRST_PART_OF_SYSTEM)
    assert forms.of_role("system") is ContentForm.TEXT
    assert forms.of_role("user") is ContentForm.EITHER
    messages = [{"role": "system", "content": TWO_PARTS}, {"role": "user", "content": TWO_PARTS}]
    assert text_of(chat(FIRST_PART_OF_SYSTEM), messages) == "AAA\nBBB|AAABBB;"


def test_parts_for_a_template_of_one_part(chat):
    assert text_of(chat(ONE_PART), [{"role": "user", "content": TWO_PARTS}]) == "user:AAA\nBBB;"


def test_string_for_a_template_whose_other_loop_runs_over_content(chat):
    assert text_of(chat(CALLS_IN_CONTENT), [USER]) == "[hi]"


def test_slow_template_is_not_probed_further(monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.0)
    with pytest.raises(TemplateTimeout):
        forms_of(CHATML)


class TestEmptyContentBesideCalls:
    @pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
    @pytest.mark.parametrize(
        ("template", "shown"),
        [
            (NULL_BESIDE_CALLS, 'user:hi[add|{"a": 1}]'),
            (ITEMS, "user:hi;assistant:<add a=1>;"),
            (PRINTED_CONTENT, 'user:hi;assistant:{"name": "add", "arguments": {"a": 1}};'),
            (LOOPED_CONTENT, 'user:hi;assistant:({"a": 1});'),
        ],
    )
    def test_calls_are_shown_and_nothing_is_printed_as_none(self, chat, template, shown, content):
        messages = [USER, answer('{"a": 1}', **content)]
        assert text_of(chat(template), messages) == shown

    def test_content_that_a_template_takes_stays_as_it_was_given(self):
        both = forms_of("{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
                        "{{ c.function.arguments }}{% endfor %}{% endfor %}")  # fmt: skip
        assert both.empty[:2] == (EmptyContent.NULL, EmptyContent.TEXT)

    def test_no_calls_in_an_empty_list(self, chat):
        message = {"role": "assistant", "content": None, "tool_calls": []}
        assert text_of(chat(PRINTED_CONTENT), [USER, message]) == "user:hi;assistant:;"

    def test_refusal_alone_is_the_content(self, chat):
        message = {"role": "assistant", "content": None, "refusal": "No."}
        assert text_of(chat(PRINTED_CONTENT), [USER, message]) == "user:hi;assistant:No.;"


class TestArguments:
    @pytest.mark.parametrize(
        "arguments", ['{"a": ', '{"a": 1,}', "[1, 2]", "3", '"x"', "nonsense", '{"a": "\\ud83d"}']
    )
    def test_text_that_is_no_object_is_text(self, chat, arguments):
        messages = [USER, answer(arguments)]
        assert text_of(chat(TOOLS), messages).endswith(f"call add({json.dumps(arguments)})\n")
        assert text_of(chat(NULL_BESIDE_CALLS), messages) == f"user:hi[add|{arguments}]"
        assert f"<add INVALID_JSON={arguments}>" in text_of(chat(ITEMS), messages)

    def test_deep_object_is_text(self, chat):
        arguments = '{"a": ' * 100 + "1" + "}" * 100
        assert arguments in text_of(chat(NULL_BESIDE_CALLS), [USER, answer(arguments)])

    @pytest.mark.parametrize("arguments", ["", " ", "null", None, {}])
    def test_no_arguments(self, chat, arguments):
        assert "call add({})" in text_of(chat(TOOLS), [USER, answer(arguments)])

    @pytest.mark.parametrize("arguments", ['{"a": "é"}', {"a": "é"}])
    def test_objects_are_json_where_a_template_adds_texts(self, chat, arguments):
        assert (
            text_of(chat(NULL_BESIDE_CALLS), [USER, answer(arguments)]) == 'user:hi[add|{"a": "é"}]'
        )

    def test_offline_list_is_text(self, chat):
        assert "INVALID_JSON=[1, 2]" in text_of(chat(ITEMS), [USER, answer([1, 2])])


class TestReasoning:
    @pytest.mark.parametrize("name", ["reasoning", "thinking", "reasoning_content"])
    @pytest.mark.parametrize("read", ["reasoning", "thinking", "reasoning_content", "thought"])
    def test_each_name_under_each_name(self, chat, name, read):
        template = (
            "{% for m in messages %}{{ m.content }}<{{ m." + read + " | default('') }}>{% endfor %}"
        )
        messages = [USER, {"role": "assistant", "content": "4", name: "2+2"}]
        assert text_of(chat(template), messages) == "hi<>4<2+2>"

    def test_a_name_that_is_empty_does_not_hide_the_other(self, chat):
        message = {"role": "assistant", "content": "4", "reasoning_content": "", "reasoning": "2+2"}
        assert text_of(chat(THINKING), [message]) == "assistant(2+2): 4\n"

    def test_reasoning_alone(self, chat):
        message = {"role": "assistant", "content": None, "reasoning": "2+2"}
        assert text_of(chat(THINKING), [message]) == "assistant(2+2): \n"

    @pytest.mark.parametrize("thinking", ["2+2", [{"type": "text", "text": "2+2"}]])
    def test_parts_of_thinking(self, chat, thinking):
        content = [{"type": "thinking", "thinking": thinking}, {"type": "text", "text": "4"}]
        message = {"role": "assistant", "content": content}
        assert text_of(chat(THINKING), [message]) == "assistant(2+2): 4\n"
        assert text_of(chat(THINKING_PARTS), [USER, message]) == "user:hi;assistant:<2+2>4;"

    def test_field_as_a_part_where_a_template_reads_parts(self, chat):
        message = {"role": "assistant", "content": "4", "reasoning": "2+2"}
        assert text_of(chat(THINKING_PARTS), [USER, message]) == "user:hi;assistant:<2+2>4;"

    def test_content_and_reasoning_beside_calls_where_one_is_taken(self, chat):
        message = answer('{"a": 1}', content="I add.", reasoning="2+2")
        assert text_of(chat(EITHER_OR), [USER, message]) == 'user:hi;<2+2\nI add.>{"a": 1}'

    def test_plan_of_calls(self, chat):
        message = answer('{"a": 1}', content=None, reasoning="I add.")
        assert text_of(chat(PLAN), [USER, message]) == 'user:hi;assistant:I add.>\n{"a": 1};'


class TestCallIds:
    def test_ids_of_other_servers_where_a_template_takes_nine_characters(self, chat):
        result = {"role": "tool", "tool_call_id": "call_1234567890", "content": "2"}
        text = text_of(chat(NINE_CHARACTERS), [USER, answer('{"a": 1}'), result])
        first, _, _ = text.partition("(")
        call_id = first.removeprefix("user::hi;").strip()
        assert re.fullmatch("[a-z0-9]{9}", call_id)
        assert f"tool:{call_id}:2;" in text

    def test_ids_stay_where_a_template_takes_them(self, chat):
        message = {"role": "assistant", "tool_calls": [{**CALL, "id": "abcdefgh1"}]}
        assert "abcdefgh1(" in text_of(chat(NINE_CHARACTERS), [USER, message])


@pytest.mark.parametrize("content", ["so far", None])
def test_calls_are_not_continued(chat, content):
    messages = [USER, answer('{"a": 1}', content=content)]
    with pytest.raises(RequestError, match="holds tool calls") as refused:
        text_of(chat(TOOLS), messages, continue_final_message=True)
    assert refused.value.param == "continue_final_message"
