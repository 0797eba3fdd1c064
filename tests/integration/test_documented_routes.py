"""Requests that are derived from /openapi.json, to every route that it documents: the server's own, those of operators
and those of the packages with routes. Reliability, fault 20. `--testkit-effort 20` draws twenty times as many.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest
import schemathesis
from jsonschema import Draft202012Validator
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi import checks
from server_process import ForkedServer, Server

from tenonry_testkit.search import search

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
KEY = {"authorization": "Bearer right"}
FLAGS = (
    "--worker", "null", "--max-model-len", "64", "--enable-operator-routes", "--api-key", "right",
    "--route", "responses", "--route", "messages", "--route", "pooling",
)  # fmt: skip
OPEN = {"/health", "/ping", "/ready", "/version"}
EXAMPLES = 20
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
# What no answer may hold, unless the request does: an address, a traceback, a file of ours.
LEAKS = re.compile(r" at 0x|Traceback|\.py\b")
# Values of the fields that requests must have.
GIVEN: dict[str, Any] = {
    "prompt": "a", "messages": [{"role": "user", "content": "a"}], "tokens": [1], "input": "a", "model": "tiny",
    "max_tokens": 1, "size": 1, "source": "a", "lora_name": "a", "lora_path": "/a", "query": "a", "documents": ["a"],
    "text_1": "a", "text_2": "a",
}  # fmt: skip
VALUES: tuple[Any, ...] = (None, True, -7, 0.5, "\0", [], [None], {}, {"a": []}, 10**30)
# What needs parts that this server does not have, and what names another model.
LACKING = ("model", "kv_transfer_params", "response_format", "structured_outputs", "priority")
VOCAB_SIZE = 257
TOO_LARGE = 413


@pytest.fixture(scope="module")
def server(text_model) -> Iterator[Server]:
    """One server for all; afterwards it still answers, and nothing went wrong in it."""
    server = ForkedServer(text_model, *FLAGS)
    try:
        server.ready()
        yield server
        body = {"prompt": "a", "max_tokens": 2}
        answer = httpx.post(server.url + "/v1/completions", json=body, headers=KEY)
        assert answer.json()["usage"]["completion_tokens"] == 2
        assert "Traceback" not in server.output
        server.process.terminate()
        assert server.end() == 0, server.output
    finally:
        server.close()


@pytest.fixture(scope="module")
def client(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=KEY, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def document(client) -> dict[str, Any]:
    return client.get("/openapi.json").json()


@pytest.fixture(scope="module")
def operations(document, server) -> list[Any]:
    """Operations that schemathesis finds in the document: one per method and path."""
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    return [result.ok() for result in schema.get_all_operations()]


def operations_with_bodies(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, schema of the body) of each POST."""
    for path, methods in document["paths"].items():
        if "post" in methods:
            yield path, methods["post"]["requestBody"]["content"]["application/json"]["schema"]


def test_every_documented_route_needs_a_key_but_three(document, server):
    for path, methods in document["paths"].items():
        for method in methods:
            for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
                answer = httpx.request(method, server.url + path, headers=headers)
                assert (answer.status_code == 401) == (path not in OPEN), (method, path)


def test_every_route_says_what_it_takes(document):
    """A POST without a schema would be searched for nothing."""
    found = dict(operations_with_bodies(document))
    assert {"/v1/completions", "/v1/responses", "/v1/messages", "/v1/rerank", "/scale"} <= set(
        found
    )
    assert all(found.values())


def check_answer(answer: Any, what: object) -> None:
    """For any request: no failure of the server, and no internals in the answer."""
    assert answer.status_code < 500, (what, answer.text)
    if answer.status_code >= 400:
        leak = LEAKS.search(answer.text)
        assert not leak or leak[0] in str(what), (what, answer.text)
        assert answer.json()["error"]["message"], what


def whole(value: Any) -> Any:
    """JSON in which integers are written as such, and tokens are some of the model's: 1.0 is rejected as an integer."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return [int(each) % VOCAB_SIZE if _is_number(each) else whole(each) for each in value]
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def send(case: Case, client: httpx.Client) -> None:
    """Send a case; a search must start no hundred engines, and leave none held."""
    body = case.body
    is_valid = case.meta.generation.mode.is_positive
    if is_valid and isinstance(body, dict):
        case.body = body = whole({name: body[name] for name in body if name not in LACKING})
        if case.path.startswith("/v1/messages"):
            body["model"] = "tiny"
        if case.path == "/scale":
            body["size"] = 1
    answer = case.call(headers=KEY, timeout=30)
    check_answer(answer, body)
    # That check does not handle 413, which is for data that are too large for any schema.
    is_judged = answer.status_code != TOO_LARGE
    rejection = [checks.negative_data_rejection] if is_judged else []
    case.validate_response(answer, checks=CHECKS + rejection)
    if case.path == "/pause":
        assert client.post("/resume", json={}).status_code == 200


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.nightly
def test_data_that_schemathesis_derives(mode, operations, client):
    for operation in operations:
        has_body = operation.method == "post"
        if has_body or mode.is_positive:
            strategy = operation.as_strategy(generation_mode=mode)
            search(strategy, partial(send, client=client), EXAMPLES if has_body else 1)


def validator_of(document: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    """Of a schema that refers to components of the document."""
    return Draft202012Validator({"components": document["components"], "allOf": [schema]})


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"][name] if name else schema


@pytest.mark.nightly
def test_each_field_of_a_wrong_type_is_named(document, client):
    """Every field of every body, with values of every type: the schema's rejections are 4xx that name the field."""
    unnamed = []
    for path, reference in operations_with_bodies(document):
        schema = resolved(document, reference)
        required = ["prompt"] if path == "/tokenize" else schema.get("required", [])
        base = {name: GIVEN[name] for name in required}
        for name, form in schema["properties"].items():
            is_valid = validator_of(document, form).is_valid
            bodies = [{**base, name: value} for value in VALUES if not is_valid(value)]
            unnamed += [
                (path, body) for body in bodies if not is_named(client.post(path, json=body), name)
            ]
    assert not unnamed, "\n".join(map(repr, unnamed))


def test_each_missing_field_is_named(document, client):
    for path, reference in operations_with_bodies(document):
        required = resolved(document, reference).get("required", [])
        for name in required:
            body = {other: GIVEN[other] for other in required if other != name}
            assert is_named(client.post(path, json=body), name), (path, name)


def is_named(answer: httpx.Response, name: str) -> bool:
    """Return True if the answer rejects the request because of that field."""
    check_answer(answer, name)
    if answer.status_code != 400:
        return False
    error = answer.json()["error"]
    return name in (error.get("param") or error["message"])
