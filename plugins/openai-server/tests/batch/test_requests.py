"""The lines of the input."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.errors import ConfigError
from tenonry_openai_server.batch import requests
from tenonry_openai_server.batch.requests import check_requests, parse, read_requests

BODY = {"model": "m", "prompt": "one"}


def line(custom_id: str = "a", **fields) -> bytes:
    given = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": BODY}
    return json.dumps({**given, **fields}).encode()


def test_a_request_is_read_and_its_body_kept_byte_for_byte():
    text = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"x":1.50,  "y":[ ]}}'
    request = parse(text)
    assert (request.custom_id, request.url) == ("a", "/v1/completions")
    assert request.body == b'{"x":1.50,  "y":[ ]}'


def test_an_id_follows_from_all_that_is_asked():
    ids = {parse(line(custom_id, body={"n": n})).id for custom_id in "ab" for n in (1, 2)}
    assert len(ids) == 4
    assert parse(line()).id == parse(line()).id


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (line(custom_id=""), "custom_id has 0 characters; 1 to 512 are allowed"),
        (line(custom_id="x" * 513), "custom_id has 513 characters"),
        (line(custom_id=1), "Expected `str`, got `int` - at `$.custom_id`"),
        (line(method="GET"), "method is 'GET'; use POST"),
        (line(url="/shutdown"), "url is '/shutdown'; use one of /v1/chat/completions"),
        (line(url="http://example.org/v1/completions"), "url is 'http://example.org/v1/completions'"),
        (line(url="/v1/completions/../../update_weights"), "use one of"),
        (line(body=[1]), "body must be a JSON object"),
        (line(body={"stream": True}), "body.stream is set; leave it out"),
        (line(bodies={}), "bodies"),
        (b'{"custom_id":"a","url":"/v1/completions"}', "missing required field `body`"),
    ],
)  # fmt: skip
def test_what_is_no_request_is_named(text, words, tmp_path):
    with pytest.raises(ValueError, match=words.replace("$", r"\$").replace("[", r"\[")):
        parse(text)
    path = tmp_path / "in.jsonl"
    path.write_bytes(line("first") + b"\n\n" + text + b"\n")
    with pytest.raises(ConfigError, match="line 3: "):
        list(read_requests(path))


def test_all_faults_are_told_at_once_up_to_ten(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join([line("a"), line("a"), *[b"{}"] * 20]))
    with pytest.raises(ConfigError) as error:
        check_requests(path)
    assert "line 2: custom_id 'a' is in an earlier line" in str(error.value)
    assert str(error.value).count("line ") == 10


def test_empty_and_absent_files_are_named(tmp_path):
    path = tmp_path / "in.jsonl"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        check_requests(path)
    path.write_bytes(b"\n\n")
    with pytest.raises(ConfigError, match="holds no request"):
        check_requests(path)


def test_a_line_has_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "MAX_LINE_BYTES", 40)
    path = tmp_path / "in.jsonl"
    path.write_bytes(line())
    with pytest.raises(ConfigError, match="line 1 has more than 40 bytes"):
        check_requests(path)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_request_or_an_error_of_one_kind(text):
    with contextlib.suppress(ValueError):
        assert parse(text).url == "/v1/completions"
