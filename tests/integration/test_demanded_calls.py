"""`tool_choice` that demands calls, on a real model: a grammar makes it call, also one that was never taught to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anthropic
import jsonschema
import openai
import pytest
import shallow_demo
from scripted import TEMPLATE
from server_process import ForkedServer, Server

from tenonry_demo_model import model_path

pytestmark = pytest.mark.timeout(120)
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/city"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Tokyo", "Rome"]}},
}
PLAIN = {
    "type": "object",
    "properties": {"loud": {"type": "boolean"}},
    "required": ["loud"],
    "additionalProperties": False,
}
SCHEMAS = {"travel": SCHEMA, "shout": PLAIN}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
FIELDS = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
    "tools": TOOLS,
    "max_tokens": 200,
    "parallel_tool_calls": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("demanded")
    (folder / "tools.jinja").write_text(TEMPLATE)
    server = ForkedServer(
        shallow_demo.save(folder / "model", num_layers=1),
        "--load-format",
        "auto",
        "--dtype",
        "float32",  # in 16 bits, what the prefix cache changes in rounding may change what is drawn
        "--chat-template",
        f"{folder}/tools.jinja",
        "--device",
        "cpu",
    )
    try:
        yield server.ready()
    finally:
        server.close()


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


def check(name: str, arguments: str) -> None:
    """The arguments follow the function's schema."""
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_required_calls_one_of_the_tools(client, seed):
    """SO-2: the calls of the whole answer and of the stream are equal, for the same seed."""
    fields = {**FIELDS, "tool_choice": "required", "seed": seed, "temperature": 1.0}
    whole = client.chat.completions.create(**fields).choices[0]
    (call,) = whole.message.tool_calls
    check(call.function.name, call.function.arguments)
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    with client.chat.completions.stream(**fields) as stream:
        for _ in stream:
            pass
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert (streamed.function.name, json.loads(streamed.function.arguments)) == (
        call.function.name,
        json.loads(call.function.arguments),
    )


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_named_function_is_called(client, name):
    choice = {"type": "function", "function": {"name": name}}
    answer = client.chat.completions.create(**FIELDS, tool_choice=choice, n=2).choices
    for one in answer:
        (call,) = one.message.tool_calls
        assert call.function.name == name
        check(name, call.function.arguments)


def test_the_other_protocols_demand_calls_too(client, server):
    tools = [
        {"type": "function", "name": name, "parameters": schema} for name, schema in SCHEMAS.items()
    ]
    response = client.responses.create(
        model="tiny",
        input="Go.",
        tools=tools,
        tool_choice="required",
        max_output_tokens=200,
        parallel_tool_calls=False,
    )
    (call,) = response.output
    check(call.name, call.arguments)
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude:
        message = claude.messages.create(
            model="tiny",
            max_tokens=200,
            messages=[{"role": "user", "content": "Go."}],
            tools=[{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()],
            tool_choice={"type": "tool", "name": "shout", "disable_parallel_tool_use": True},
        )
    (block,) = message.content
    assert message.stop_reason == "tool_use"
    check(block.name, json.dumps(block.input))


MARK = "[TOOL_CALLS]"
MISTRAL = (
    f"{{% if tools %}}{MARK}{{{{ tools | tojson }}}}{{% endif %}}"
    "{% for message in messages %}{{ message.content }}{% endfor %}"
)


def with_mark(folder: Path) -> int:
    """The demo model in a folder, one of whose special tokens is Mistral's mark of calls; returns its id."""
    for path in Path(model_path()).iterdir():
        text = path.read_bytes()
        if path.suffix == ".json":
            text = text.replace(b"<|im_start|>", MARK.encode())
        (folder / path.name).write_bytes(text)
    (folder / "chat_template.jinja").write_text(MISTRAL)
    added = json.loads((folder / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    (token_id,) = [one["id"] for one in added if one["content"] == MARK]
    return token_id


@pytest.fixture(scope="module")
def mistral(tmp_path_factory) -> Iterator[tuple[Server, int]]:
    """A server of a model that marks calls with a special token, and that token."""
    folder = tmp_path_factory.mktemp("mistral")
    token_id = with_mark(folder)
    words = "--load-format auto --dtype float32 --device cpu"
    server = ForkedServer(folder, *words.split())
    try:
        yield server.ready(), token_id
    finally:
        server.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_strict_tools_bound_calls_that_the_model_chooses_to_make(mistral, seed):
    """SO-2: with `auto` the answer may be text; a call in it obeys its schema, whole and streamed."""
    server, mark = mistral
    strict = [
        {"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS
    ]
    fields = {**FIELDS, "tools": strict, "tool_choice": "auto", "temperature": 1.0, "seed": seed}
    fields["max_tokens"] = 100
    calling = {**fields, "logit_bias": {str(mark): 100}}
    with server.client() as client:
        silent = client.chat.completions.create(**{**fields, "logit_bias": {str(mark): -100}})
        whole = client.chat.completions.create(**calling).choices[0].message
        chunks = list(client.chat.completions.create(**calling, stream=True))
    assert silent.choices[0].message.tool_calls is None
    assert silent.choices[0].message.content
    (call,) = whole.tool_calls
    check(call.function.name, call.function.arguments)
    assert not whole.content
    pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or ()]
    assert "".join(piece.function.arguments for piece in pieces) == call.function.arguments


def test_a_demanded_call_begins_with_the_special_token(mistral):
    server, mark = mistral
    with server.client() as client:
        choice = client.chat.completions.create(
            **FIELDS, tool_choice="required", extra_body={"return_token_ids": True}
        ).choices[0]
    (call,) = choice.message.tool_calls
    check(call.function.name, call.function.arguments)
    assert choice.model_extra["token_ids"][0] == mark
    assert choice.finish_reason == "tool_calls"
