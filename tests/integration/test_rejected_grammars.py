"""A grammar that is not served is a 400 whose `param` is the field that the client sent, on every route."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import openai
import pytest
import shallow_demo
from scripted import TEMPLATE
from server_process import ForkedServer, Server

pytestmark = pytest.mark.timeout(120)
# Distinct items are not enforced, unless they are few.
REJECTED = {
    "type": "object",
    "properties": {"ids": {"type": "array", "uniqueItems": True}},
    "required": ["ids"],
}
PLACE = "/properties/ids"
SERVED = {"type": "object", "properties": {}}
MESSAGES = [{"role": "user", "content": "Hi"}]
REQUIRED = {"tool_choice": "required"}


def format_of(schema):
    return {"type": "json_schema", "json_schema": {"name": "ids", "schema": schema}}


def tools(*schemas, **more):
    return [
        {"type": "function", "function": {"name": f"f{place}", "parameters": schema, **more}}
        for place, schema in enumerate(schemas)
    ]


def flat_tools(*schemas):
    functions = [
        {"type": "function", "name": f"f{place}", "parameters": schema}
        for place, schema in enumerate(schemas)
    ]
    return [{"type": "web_search"}, *functions]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("rejected")
    (folder / "tools.jinja").write_text(TEMPLATE)
    words = f"--load-format auto --device cpu --chat-template {folder}/tools.jinja"
    server = ForkedServer(shallow_demo.save(folder / "model", num_layers=1), *words.split())
    try:
        yield server.ready()
    finally:
        server.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": format_of(REJECTED)}, "response_format.json_schema.schema"),
        ({"extra_body": {"guided_json": REJECTED}}, "guided_json"),
        ({"extra_body": {"structured_outputs": {"json": REJECTED}}}, "structured_outputs.json"),
        ({"tools": tools(SERVED, REJECTED), **REQUIRED}, "tools[1].function.parameters"),
        ({"tools": tools(REJECTED, strict=True)}, "tools[0].function.parameters"),
    ],
)
def test_chats(server, fields, param, stream):
    with server.client() as client, pytest.raises(openai.BadRequestError) as caught:
        list(client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=stream, **fields
        ))  # fmt: skip
    assert caught.value.param == param
    assert caught.value.body["message"].startswith(f"{param} cannot be served: {PLACE}: ")


@pytest.mark.parametrize("field", ["regex", "grammar"])
@pytest.mark.parametrize("form", ["guided_{}", "structured_outputs.{}"])
def test_completions(server, field, form):
    param = form.format(field)
    outer, _, inner = param.partition(".")
    extra = {outer: {inner: "("} if inner else "("}
    with server.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="Once", extra_body=extra)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": {"format": {"type": "json_schema", "name": "ids", "schema": REJECTED}}}, "text.format.schema"),
        ({"tools": flat_tools(SERVED, REJECTED), **REQUIRED}, "tools[2].parameters"),
    ],
)  # fmt: skip
def test_responses(server, fields, param):
    with server.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="tiny", input="Hi", **fields)
    assert caught.value.param == param
    assert caught.value.body["message"].startswith(f"{param} cannot be served: {PLACE}: ")


def test_responses_name_a_tool_by_its_place_in_the_request(server):
    bad = [{"type": "web_search"}, {"type": "function", "name": "no name", "parameters": SERVED}]
    with server.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="tiny", input="Hi", tools=bad)
    assert caught.value.param == "tools[1].name"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"output_config": {"format": {"type": "json_schema", "schema": REJECTED}}}, "output_config.format.schema"),
        (
            {
                "tools": [{"type": "bash_20250124", "name": "bash"}, {"name": "f", "input_schema": REJECTED}],
                "tool_choice": {"type": "any"},
            },
            "tools[1].input_schema",
        ),
    ],
)  # fmt: skip
def test_messages(server, fields, param):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    with client, pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model="tiny", max_tokens=9, messages=MESSAGES, extra_body=fields)
    assert f"{param} cannot be served: {PLACE}: " in str(caught.value)
