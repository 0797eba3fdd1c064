"""Tool calls in real processes: a worker that answers by a script behind `tenonry serve`, read by official clients."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest
from scripted import demo_tokenizer, start_scripted
from server_process import Server

pytestmark = pytest.mark.timeout(120)
PARSER = '''
from tenonry_output_parsers.scanning import ScanningParser
from tenonry_output_parsers.text_input import check_marks

MARKS = check_marks("<|im_start|>")


class Marked(ScanningParser):
    """Calls after a special token."""

    reads_calls = True
    markers = MARKS

    def read(self):
        while (yield from self.source.until(MARKS, self.text)):
            yield from self.attempt(MARKS[0], self.call_object())
'''
CALL = '{"name": "add", "arguments": {"a": 1, "why": "é🦊 </b>"}}'
ANSWER = f"<think>\nHm.\n</think>\n\nI add.\n<tool_call>\n{CALL}\n</tool_call>"
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
STRICT = {"type": "function", "function": {**ADD["function"], "strict": True}}
FIELDS = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Add."}],
    "tools": [ADD],
    "max_tokens": 400,
}


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Iterator:
    servers = []

    def serve(answer: str, *arguments: str) -> Server:
        folder = tmp_path_factory.mktemp("script")
        (folder / "marked.py").write_text(PARSER)
        words = (word.format(folder=folder) for word in arguments)
        servers.append(start_scripted(folder, answer, *words))
        return servers[-1].ready()

    yield serve
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def shared(start) -> Server:
    return start(ANSWER)


def check(message) -> None:
    """A message of the official client matches the script."""
    assert message.content == "I add."
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "add",
        json.loads(CALL)["arguments"],
    )


def test_calls_whole_and_streamed_token_by_token(shared):
    """SO-2, SO-3: `auto` finds think+hermes in the template; the stream and the whole answer agree."""
    with shared.client() as client:
        whole = client.chat.completions.create(**FIELDS)
        with client.chat.completions.stream(**FIELDS) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_completion()
    for found in (whole, streamed):
        (choice,) = found.choices
        check(choice.message)
        assert choice.finish_reason == "tool_calls"
        assert choice.message.reasoning_content == "Hm."
    num_tokens = len(demo_tokenizer().encode(ANSWER, add_special_tokens=False).ids) + 1
    assert whole.usage.completion_tokens == num_tokens


def test_several_choices_and_a_stop_string(shared):
    with shared.client() as client:
        many = client.chat.completions.create(**FIELDS, n=3)
        stopped = client.chat.completions.create(**FIELDS, stop=["\n<tool_call>"])
    for choice in many.choices:
        check(choice.message)
    (choice,) = stopped.choices
    assert (choice.message.content, choice.finish_reason) == ("I add.", "stop")
    assert choice.message.tool_calls is None


def test_results_of_tools_go_back_to_the_model(shared):
    with shared.client() as client:
        first = client.chat.completions.create(**FIELDS).choices[0].message
        call = first.tool_calls[0]
        messages = [
            *FIELDS["messages"],
            first,
            {"role": "tool", "tool_call_id": call.id, "content": "2"},
        ]
        check(client.chat.completions.create(**{**FIELDS, "messages": messages}).choices[0].message)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [STRICT]},
        {"tools": [STRICT], "stream": True},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
    ],
    ids=str,
)
def test_what_needs_a_grammar_names_a_worker_without_grammars(shared, fields):
    """SO-1: a 400 with an alternative, also if the answer would be a stream."""
    with shared.client() as client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{**FIELDS, **fields})
    assert refused.value.code == "unsupported"
    message = refused.value.body["message"]
    assert "scripted.py:Scripted' does not support 'grammar'; leave out structured" in message
    assert message.endswith("such as --worker torch")


def test_markup_of_special_tokens_is_seen_and_other_special_tokens_are_not(start):
    """SO-3: the parser declares one special token; the end token is none of its markers."""
    server = start(f"Yes.<|im_start|>{CALL}", "--output-parser", "{folder}/marked.py:Marked")
    with server.client() as client:
        whole = client.chat.completions.create(**FIELDS).choices[0]
        chunks = list(client.chat.completions.create(**FIELDS, stream=True))
    assert whole.message.content == "Yes."
    assert whole.message.tool_calls[0].function.name == "add"
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(texts) == "Yes."
