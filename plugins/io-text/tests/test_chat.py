"""Chats rendered as transformers renders them."""

from __future__ import annotations

import copy
import json

import pytest
from chat_templates import (
    CALL,
    CHAT,
    CHATML,
    EITHER,
    PARTS,
    STATE,
    THINKING,
    TOOL,
    TOOL_CHAT,
    TOOLS,
    text_of,
)

from tenonry.errors import RequestError
from tenonry.interfaces.io_processor import read_prompt
from tenonry.sampling_params import SamplingParams
from tenonry_io_text.plain import plain


@pytest.fixture(scope="session")
def oracle(tokenizer_folders):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(tokenizer_folders["llama"]), local_files_only=True)


@pytest.mark.parametrize("template", [CHATML, TOOLS, STATE, EITHER, THINKING])
@pytest.mark.parametrize(
    "messages", [CHAT, CHAT[1:2], TOOL_CHAT, [*CHAT, {"role": "skip", "content": ""}]]
)
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.slow
def test_same_text_as_transformers(chat, oracle, template, messages, prompt):
    """Fields that are null are omitted for both: older releases of transformers print them as "None"."""
    messages = [
        {key: value for key, value in message.items() if value is not None} for message in messages
    ]
    for tools, documents in ((None, None), ([TOOL], [{"title": "T", "text": "x"}])):
        expected = oracle.apply_chat_template(
            copy.deepcopy(messages), chat_template=template, tokenize=False, add_generation_prompt=prompt, tools=tools,
            documents=documents,
        )  # fmt: skip
        shown = tools if "tools" in template else None
        found = text_of(
            chat(template), messages, add_generation_prompt=prompt, tools=shown, documents=documents
        )
        assert found == expected


def test_tools_that_the_template_does_not_show_are_refused(chat):
    with pytest.raises(RequestError, match="does not show tools") as refused:
        chat(CHATML).render_chat(CHAT, tools=[TOOL])
    assert refused.value.param == "tools"
    assert "tools" not in chat(CHATML).chat_template()


@pytest.mark.parametrize("template", [CHATML, TOOLS, EITHER])
@pytest.mark.parametrize("last", ["The answer", "The answer is ", "two\nlines\n"])
def test_continued_message_as_transformers_does_it(chat, oracle, template, last):
    messages = [*CHAT, {"role": "assistant", "content": last}]
    expected = oracle.apply_chat_template(
        copy.deepcopy(messages), chat_template=template, tokenize=False, continue_final_message=True
    )
    assert text_of(chat(template), messages, continue_final_message=True) == expected


def test_continued_message_in_parts(chat):
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "text", "text": "so far"}]},
    ]
    assert (
        text_of(chat(PARTS), messages, continue_final_message=True) == "user:<x>assistant:<so far"
    )


def test_null_fields_are_left_out(chat):
    assert "None" not in text_of(chat(THINKING), TOOL_CHAT)


def test_messages_are_not_changed(chat):
    messages = copy.deepcopy(
        [*CHAT, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}]
    )
    before = copy.deepcopy(messages)
    text_of(chat(EITHER), messages, continue_final_message=True)
    assert messages == before


def test_generation_prompt_is_the_default(chat):
    assert text_of(chat(CHATML), CHAT).endswith("<|assistant|>\n")
    assert text_of(chat(CHATML), CHAT, add_generation_prompt=False).endswith("<|end|>\n")


def test_rendered_chat_gets_no_second_bos(chat):
    processor = chat("{{ bos_token }}{{ messages[0].content }}")
    prompt = processor.render_chat([{"role": "user", "content": "the cat"}])
    ids = processor.process_prompt(read_prompt(prompt), SamplingParams()).token_ids.tolist()
    assert ids.count(1) == 1
    assert ids[0] == 1


class TestContent:
    def test_parts_become_text_where_text_is_wanted(self, chat):
        content = [
            {"type": "text", "text": "a"},
            "b",
            {"type": "input_text", "text": "c"},
            {"type": "refusal", "refusal": "d"},
        ]
        assert (
            text_of(chat("{{ messages[0].content }}"), [{"role": "user", "content": content}])
            == "a\nb\nc\nd"
        )

    def test_text_becomes_a_part_where_parts_are_wanted(self, chat):
        assert text_of(chat(PARTS), [{"role": "user", "content": "a"}]) == "user:<a>"

    def test_arguments_of_tool_calls_become_objects(self, chat):
        """The API carries them as JSON text; templates print them as objects."""
        call = {
            **CALL,
            "function": {"name": "add", "arguments": json.dumps(CALL["function"]["arguments"])},
        }
        messages = [TOOL_CHAT[0], {**TOOL_CHAT[1], "tool_calls": [call]}]
        assert text_of(chat(TOOLS), messages) == text_of(chat(TOOLS), TOOL_CHAT[:2])
        empty = {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "add", "arguments": ""}}],
        }
        assert "add({})" in text_of(chat(TOOLS), [empty])

    @pytest.mark.parametrize("name", ["reasoning", "thinking", "reasoning_content"])
    def test_reasoning_under_each_of_its_names(self, chat, name):
        assert (
            text_of(chat(THINKING), [{"role": "assistant", "content": "4", name: "2+2"}])
            == "assistant(2+2): 4\n"
        )

    def test_pydantic_messages(self, chat):
        from pydantic import BaseModel

        class Message(BaseModel):
            role: str
            content: str

        assert text_of(chat(THINKING), [Message(role="user", content="x")]) == "user: x\n"

    @pytest.mark.parametrize(
        ("messages", "words", "param"),
        [
            ([], "messages is empty", "messages"),
            ("hi", "must be a list, not a str", "messages"),
            (None, "must be a list", "messages"),
            ([3], r"messages\[0\] must be an object", "messages[0]"),
            ([{"content": "x"}], "with 'role'", "messages[0]"),
            ([{"role": 3, "content": "x"}], "with 'role'", "messages[0]"),
            ([CHAT[0], {"role": "user", "content": 3}], "string or a list of parts, not a int", "messages[1].content"),
            (
                [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
                "type 'image_url'; only text is supported",
                "messages[0].content[0]",
            ),
            ([{"role": "user", "content": [{"type": "text"}]}], "must be a string", "messages[0].content[0]"),
            ([{"role": "user", "content": [3]}], "is a int", "messages[0].content[0]"),
            ([{"role": "user", "content": [{"type": ["text"]}]}], "only text", "messages[0].content[0]"),
            ([{"role": "assistant", "tool_calls": 3}], "tool_calls must be a list", "messages[0].tool_calls"),
            ([{"role": "assistant", "tool_calls": [{}]}], "'function'", "messages[0].tool_calls"),
            ([{"role": "user", "content": object()}], "hold a object", "messages"),
        ],
    )  # fmt: skip
    def test_bad_messages_are_named(self, chat, messages, words, param):
        with pytest.raises(RequestError, match=words) as caught:
            text_of(chat(CHATML), messages)
        assert caught.value.param == param

    def test_deep_nesting_is_refused(self):
        value = []
        for _ in range(100):
            value = [value]
        with pytest.raises(RequestError, match="64 levels"):
            plain(value)

    def test_too_many_messages(self, chat):
        with pytest.raises(RequestError, match="5000 entries; at most 1024"):
            text_of(chat(CHATML), CHAT[:1] * 5000)


class TestArguments:
    def test_kwargs_that_the_template_reads(self, chat):
        messages = CHAT[:1]
        assert "[off]" in text_of(
            chat(THINKING), messages, chat_template_kwargs={"enable_thinking": False}
        )
        assert "[off]" not in text_of(
            chat(THINKING), messages, chat_template_kwargs={"enable_thinking": True}
        )

    def test_kwargs_that_it_does_not_read_do_not_matter(self, chat):
        assert text_of(
            chat(CHATML), CHAT, chat_template_kwargs={"enable_thinking": False}
        ) == text_of(chat(CHATML), CHAT)

    @pytest.mark.parametrize(
        "name",
        [
            "messages",
            "tools",
            "tokenize",
            "chat_template",
            "add_generation_prompt",
            "bos_token",
            "raise_exception",
            "range",
        ],
    )
    def test_kwargs_cannot_replace_what_is_not_theirs(self, chat, name):
        """Class J: CVE-2025-62426 was `tokenize` in chat_template_kwargs."""
        with pytest.raises(RequestError, match=f"must not set {name}") as caught:
            text_of(chat(TOOLS), CHAT, chat_template_kwargs={name: "x"})
        assert caught.value.param == "chat_template_kwargs"

    @pytest.mark.parametrize("given", [[], "x", {str(index): 1 for index in range(65)}])
    def test_kwargs_are_an_object_of_bounded_size(self, chat, given):
        with pytest.raises(RequestError, match="at most 64 entries"):
            text_of(chat(CHATML), CHAT, chat_template_kwargs=given)

    def test_a_template_cannot_come_from_a_request(self, chat):
        with pytest.raises(RequestError, match="unknown chat settings: chat_template;") as caught:
            chat(CHATML).render_chat(CHAT, chat_template="{{ 1 }}")
        assert caught.value.param == "chat_template"

    def test_continue_and_prompt_exclude_each_other(self, chat):
        with pytest.raises(RequestError, match="exclude each other"):
            text_of(chat(CHATML), CHAT, continue_final_message=True, add_generation_prompt=True)

    @pytest.mark.parametrize("last", [{"role": "assistant"}, {"role": "assistant", "content": []}])
    def test_nothing_to_continue(self, chat, last):
        with pytest.raises(RequestError, match="no content to continue"):
            text_of(chat(EITHER), [*CHAT, last], continue_final_message=True)

    def test_template_that_drops_the_last_message(self, chat):
        with pytest.raises(RequestError, match="does not print the last message"):
            text_of(chat("{{ messages[0].content }}"), CHAT, continue_final_message=True)

    @pytest.mark.parametrize("param", ["tools", "documents"])
    @pytest.mark.parametrize("value", ["x", [3], {"a": 1}])
    def test_tools_and_documents_are_lists_of_objects(self, chat, param, value):
        with pytest.raises(RequestError, match=f"{param} must be a list of objects") as caught:
            text_of(chat(TOOLS), CHAT, **{param: value})
        assert caught.value.param == param
