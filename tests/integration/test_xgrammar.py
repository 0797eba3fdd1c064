"""Structured output over xgrammar, by the real server and the official client (SO-1, EC-6)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import jsonschema
import openai
import pytest
from scripted import TEMPLATE
from server_process import ForkedServer, Server

pytest.importorskip("xgrammar", reason="xgrammar is not installed")

pytestmark = pytest.mark.timeout(120)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
        "next": {"anyOf": [{"$ref": "#/$defs/pet"}, {"type": "null"}]},
    },
    "required": ["name", "age", "tags", "next"],
    "additionalProperties": False,
    "$defs": {"pet": {"properties": {"paws": {"const": 4}}, "required": ["paws"]}},
}
NUMBER = r"[A-Z][a-z]{2,5} \d{3}"
TOOL = {"type": "function", "function": {"name": "shout", "parameters": {"type": "object"}}}
BOMBS = {
    "guided_regex": f"({'|'.join('a' * count for count in range(1, 600))})+b",
    "guided_json": {"properties": {f"p{place}": {"type": "string"} for place in range(6000)}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("xgrammar")
    (folder / "tools.jinja").write_text(TEMPLATE)
    server = ForkedServer(
        "demo",
        "--load-format", "auto", "--dtype", "float32", "--device", "cpu", "--grammar-backend", "xgrammar",
        "--io-processor-option", "grammar_seconds=0.5", "--chat-template", f"{folder}/tools.jinja",
    )  # fmt: skip
    try:
        yield server.ready()
    finally:
        server.close()


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


def test_a_schema_and_an_expression_are_satisfied(client):
    response_format = {
        "type": "json_schema",
        "json_schema": {"name": "person", "schema": PERSON, "strict": True},
    }
    fields = {"model": "tiny", "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 300}
    for seed in (1, 2):
        form = {
            **fields,
            "response_format": response_format,
            "seed": seed,
            "temperature": seed / 2 - 0.5,
        }
        whole = client.chat.completions.create(**form).choices[0]
        chunks = list(client.chat.completions.create(**form, stream=True))
        text = whole.message.content
        assert whole.finish_reason == "stop"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
        jsonschema.validate(json.loads(text), PERSON)
    answer = client.chat.completions.create(**fields, n=3, extra_body={"guided_regex": NUMBER})
    for one in answer.choices:
        assert one.finish_reason == "stop"
        assert re.fullmatch(NUMBER, one.message.content)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"guided_json": {"properties": {"a": {"uniqueItems": True}}}}, "/properties/a: .*'uniqueItems'"),
        ({"guided_regex": "(?=a)b"}, "look-around"),
        ({"guided_grammar": 'start: %json {"type": "null"}'}, "--grammar-backend llguidance"),
        ({"guided_grammar": "root ::= x"}, "x"),
        ({"guided_json": '{"enum": ["' + "x" * (1 << 20) + '"]}'}, "larger than"),
    ],
)  # fmt: skip
def test_what_it_does_not_enforce_is_a_400(client, extra, message):
    with pytest.raises(openai.BadRequestError, match=message):
        client.completions.create(model="tiny", prompt="x", extra_body=extra)


def test_demanded_calls_are_a_400_with_what_to_type(client):
    with pytest.raises(openai.BadRequestError, match="--grammar-backend llguidance"):
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Shout!"}],
            tools=[TOOL],
            tool_choice="required",
        )


def test_bombs_are_a_400_within_their_time_and_the_server_lives(client):
    fields = {"model": "tiny", "prompt": "x", "max_tokens": 8, "temperature": 0}
    harmless = {"guided_choice": ["yes", "no"]}
    before = client.completions.create(**fields, extra_body=harmless).choices[0].text
    for name, bomb in BOMBS.items():
        with pytest.raises(openai.BadRequestError, match=r"not compiled within 0.5 s"):
            client.completions.create(**fields, extra_body={name: bomb})
    assert client.completions.create(**fields, extra_body=harmless).choices[0].text == before
    assert before in {"yes", "no"}
