"""Attacks of a web page on a server without a key on this machine (class Z): none succeeds.

DNS rebinding, forms that post across sites, null origins, and markup in the server's answers.
"""

from __future__ import annotations

import json

import pytest

BODY = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1}).encode()
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "127.0.0.1.evil.test",
        "localhost.evil.test",
        "evil.test:80",
        "0x7f.1.evil.test",
        "169.254.169.254",
    ],
)
def test_a_name_that_was_pointed_here_is_refused(door, host):
    """DNS rebinding: the page's own name leads to this machine, so the browser takes the answer for its own."""
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/metrics")):
        status, _, answer = door.send(method, path, BODY, {**JSON, "Host": host})
        assert status == 403
        assert json.loads(answer)["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
        "text/plain; application/json",
    ],
)
def test_forms_of_other_sites_post_nothing(door, kind):
    """Content types that a browser sends without asking first."""
    for path in (
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/responses",
        "/tokenize",
        "/v1/embeddings",
    ):
        status, _, _ = door.send("POST", path, BODY, {"content-type": kind} if kind else {})
        assert status == 415, path


@pytest.mark.parametrize(
    "origin", ["null", "https://evil.test", "http://127.0.0.1:1", "http://localhost"]
)
def test_origins_of_other_sites_are_refused(door, origin):
    status, headers, answer = door.send("POST", "/v1/completions", BODY, {**JSON, "Origin": origin})
    assert status == 403
    assert json.loads(answer)["error"]["code"] == "origin_not_allowed"
    assert "access-control-allow-origin" not in headers


def test_the_question_before_a_request_is_answered_with_no(door):
    """A preflight request: without leave, the browser sends nothing."""
    asked = {"Origin": "https://evil.test", "Access-Control-Request-Method": "POST"}
    _, headers, _ = door.send("OPTIONS", "/v1/completions", b"", asked)
    assert "access-control-allow-origin" not in headers


MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"/{MARKUP}".replace(" ", "%20"), b""),
        ("POST", "/v1/completions", json.dumps({"model": MARKUP, "prompt": "a"}).encode()),
        ("POST", "/v1/completions", json.dumps({"model": "tiny", "prompt": "a", MARKUP: 1, "max_tokens": 1}).encode()),
        ("POST", "/v1/completions", json.dumps({"model": "tiny", "prompt": MARKUP, "echo": True}).encode()),
        ("GET", "/v1/models", b""), ("GET", "/metrics", b""), ("GET", "/health", b""),
    ],
    ids=range(7),
)  # fmt: skip
def test_nothing_is_served_as_a_page(door, method, path, body):
    """Markup of clients and of the model goes out as JSON or plain text, which no browser renders."""
    _, headers, _ = door.send(method, path, body, JSON)
    kind = headers.get("content-type", "")
    assert not kind or kind.startswith(
        ("application/json", "text/plain", "application/openmetrics-text")
    )
    assert headers.get("x-content-type-options") == "nosniff"
    assert "<" not in headers.get("x-tenonry-ignored", "")
