"""A field that is null is as good as absent: every optional field of every route, at every level of its document."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

pytestmark = pytest.mark.slow  # all fields of all routes

ROUTES = ("messages", "responses", "pooling")
FUNCTION = {"name": "f", "parameters": {"type": "object", "default": None}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "ab", "seed": 1, "stream_options": {"include_usage": True}, "stream": True},
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "x"},
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": "x", "tool_calls": [CALL]},
            {"role": "tool", "content": "x", "tool_call_id": "1"},
        ],
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    },
    "/tokenize": {"messages": [{"role": "user", "content": "x"}]},
    "/detokenize": {"tokens": [104]},
    "/v1/messages": {
        "model": "fake",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "x"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "x"}, {"type": "tool_use", "id": "1", "name": "f", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "x"}]},
            ]},
        ],
        "thinking": {"type": "enabled"},
        "output_config": {"effort": "low"},
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "content": [{"text": "x"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "x"},
        ],
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    },
    "/v1/embeddings": {"input": "x"},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v1/rerank": {"query": "a", "documents": [{"text": "b"}]},
}  # fmt: skip


@pytest.fixture
def routes(make_api):
    return make_api(route=ROUTES)


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def forms(document: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The alternatives of a schema."""
    schema = resolved(document, schema)
    if "anyOf" not in schema:
        yield schema
    for form in schema.get("anyOf", ()):
        yield from forms(document, form)


def fits(document: dict[str, Any], schema: dict[str, Any], value: dict[str, Any]) -> bool:
    """Return True if an object may be of this form, by the fields that distinguish forms."""
    for name in ("type", "role"):
        form = resolved(document, schema["properties"].get(name, {}))
        allowed = [form["const"]] if "const" in form else form.get("enum")
        if name in value and allowed is not None and value[name] not in allowed:
            return False
    return set(schema.get("required", ())) <= set(value)


def places(
    document: Any, schema: Any, value: Any, path: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, ...]]:
    """Paths of all optional fields that an instance lacks."""
    for form in forms(document, schema):
        if isinstance(value, list) and "items" in form:
            for index, entry in enumerate(value):
                yield from places(document, form["items"], entry, (*path, index))
        if isinstance(value, dict) and "properties" in form and fits(document, form, value):
            for name, inner in form["properties"].items():
                if name in value:
                    yield from places(document, inner, value[name], (*path, name))
                elif name not in form.get("required", ()):
                    yield (*path, name)


def candidates(api: Any, path: str) -> list[tuple[Any, ...]]:
    document = api.get("/openapi.json").json()
    content = document["paths"][path]["post"]["requestBody"]["content"]
    return list(
        dict.fromkeys(places(document, content["application/json"]["schema"], BODIES[path]))
    )


def with_nulls(body: dict[str, Any], paths: list[tuple[Any, ...]]) -> dict[str, Any]:
    body = deepcopy(body)
    for *parents, name in paths:
        owner: Any = body
        for part in parents:
            owner = owner[part]
        owner[name] = None
    return body


def asked(api: Any, path: str, body: dict[str, Any]) -> Any:
    """The engine's arguments, and the answer without the parts that differ from call to call."""
    api.engine.received.clear()
    response = api.post(path, body)
    assert response.status_code == 200, (body, response.text)
    assert "x-tenonry-ignored" not in response.headers
    shown = ()
    if response.headers["content-type"] == "application/json":
        shown = {
            name: value
            for name, value in response.json().items()
            if not name.startswith(("id", "created"))
        }
        shown = {name: value for name, value in shown.items() if name not in ("output", "text")}
    return [(call.prompt, call.params) for call in api.engine.received], shown


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.slow
def test_every_optional_field_may_be_null(path, routes):
    paths = candidates(routes, path)
    assert paths
    wanted = asked(routes, path, BODIES[path])
    for place in paths:
        assert asked(routes, path, with_nulls(BODIES[path], [place])) == wanted, place


@pytest.mark.parametrize("path", BODIES)
def test_the_document_says_so(path, routes):
    document = routes.get("/openapi.json").json()
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]

    def takes_null(place: tuple[Any, ...]) -> bool:
        found = [body]
        for part in place:
            kinds = [form for each in found for form in forms(document, each)]
            found = [
                form["items"] if isinstance(part, int) else form["properties"][part]
                for form in kinds
                if ("items" if isinstance(part, int) else "properties") in form
                and (isinstance(part, int) or part in form["properties"])
            ]
        return any(is_null(form) for each in found for form in forms(document, each))

    assert [place for place in candidates(routes, path) if not takes_null(place)] == []


def is_null(form: dict[str, Any]) -> bool:
    free = not form.keys() - {"description", "title", "default"}
    return free or "null" in form.get("type", "") or None in form.get("enum", ())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_and_so_may_any_of_them_together(routes, data):
    path = data.draw(st.sampled_from(list(BODIES)))
    chosen = data.draw(st.lists(st.sampled_from(candidates(routes, path)), unique=True))
    assert asked(routes, path, with_nulls(BODIES[path], chosen)) == asked(
        routes, path, BODIES[path]
    )


def test_bodies_of_operators_take_null_as_well(make_api, monkeypatch):
    api = make_api(enable_operator_routes=True, api_key=("k",))
    slept = []

    async def sleep(level: int) -> None:
        slept.append(level)

    monkeypatch.setattr(api.engine, "sleep", sleep, raising=False)
    headers = {"authorization": "Bearer k"}
    assert api.post("/sleep", {"level": None}, headers=headers).status_code == 200
    assert slept == [1]


@pytest.mark.parametrize(
    "values",
    [
        {"enable_thinking": None},
        {"tags": ["a", "b"]},
        {"persona": {"name": "x", "likes": [1, 2.5, None]}},
        {"a": "b", "c": 1, "d": True},
        {},
    ],
)
def test_a_template_gets_values_of_any_kind(values, routes):
    """vLLM and transformers pass a template all values, null as none."""
    routes.chat(chat_template_kwargs=values)
    assert routes.engine.io_processor.seen[1]["chat_template_kwargs"] == values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (5, "a mapping of at most 64 names"),
        ({str(i): 1 for i in range(65)}, "a mapping of at most 64 names"),
        ({"x" * 65: 1}, "a name of more than 64 characters"),
        ({"a": "x" * 200_000}, "is larger than"),
    ],
)
def test_values_for_templates_are_bounded(values, message, routes):
    response = routes.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": values},
    )
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_values_for_templates_are_not_nested_deeply(routes):
    value: Any = 1
    for _ in range(40):
        value = [value]
    body = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": value}}
    assert "32 levels deep" in routes.post("/v1/chat/completions", body).text


def test_null_among_extra_args_is_absent(routes):
    routes.complete(extra_args={"a": 1, "b": None})
    assert routes.engine.received[0].params.extra_args == {"a": 1}
