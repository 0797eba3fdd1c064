"""Hostile headers at a server with a key (class X): only the key opens, and no route is a way around it."""

from __future__ import annotations

import json
import random

import pytest
from server_process import Server

KEY = "sk-right"
OPEN = {"/health", "/ping", "/ready", "/version"}


def near_keys() -> list[str]:
    """One thousand headers that are nearly right."""
    draw = random.Random(7)
    schemes = [
        "Bearer",
        "bearer",
        "BEARER",
        "Basic",
        "Token",
        "",
        "Bearer Bearer",
        "Bearer,",
        "Bearer:",
        "Digest",
    ]
    found = []
    while len(found) < 1000:
        key = list(KEY)
        for _ in range(draw.randint(0, 3)):
            place = draw.randrange(len(key) + 1)
            kind = draw.randrange(4)
            if kind == 0:
                key.insert(place, draw.choice("\t ,;%*\"'\\/aA0\x7f"))
            elif kind == 1 and key:
                key.pop(min(place, len(key) - 1))
            elif kind == 2 and key:
                at = min(place, len(key) - 1)
                key[at] = key[at].swapcase()
            else:
                key *= draw.randint(1, 40)
        text = f"{draw.choice(schemes)} {''.join(key)}".replace("\r", "").replace("\n", "")
        scheme, _, given = text.partition(" ")
        if not (scheme.lower() == "bearer" and given.strip() == KEY):
            found.append(text)
    return found


def test_nearly_right_keys_stay_outside(locked_door):
    for text in near_keys():
        status, _, answer = locked_door.send("GET", "/v1/models", headers={"Authorization": text})
        assert status in {400, 401}, (text, answer)


def test_the_key_opens(locked_door):
    for headers in ({"Authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
        assert locked_door.send("GET", "/v1/models", headers=headers)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "127.0.0.1"}, {"X-Original-URL": "/health"}, {"X-Rewrite-URL": "/health"},
        {"Host": "localhost/health?"}, {"X-HTTP-Method-Override": "GET"}, {"Forwarded": "for=127.0.0.1;host=health"},
        {"Cookie": f"api_key={KEY}"}, {"Proxy-Authorization": f"Bearer {KEY}"}, {"Authorization-": f"Bearer {KEY}"},
    ],
    ids=lambda headers: next(iter(headers)),
)  # fmt: skip
def test_headers_of_proxies_open_nothing(locked_door, headers):
    assert locked_door.send("GET", "/v1/models", headers=headers)[0] in {400, 401}


def test_the_key_in_the_address_opens_nothing(locked_door):
    for path in (f"/v1/models?api_key={KEY}", f"/v1/models?key={KEY}", f"/{KEY}/v1/models"):
        assert locked_door.send("GET", path)[0] == 401


def test_every_route_needs_the_key_and_none_debugs(locked_door):
    """Also names that other servers have for debugging: nothing answers there, with the key or without."""
    key = {"Authorization": f"Bearer {KEY}"}
    paths = json.loads(locked_door.send("GET", "/openapi.json", headers=key)[2])["paths"]
    assert len(paths) > 15
    for path in paths:
        for method in ("GET", "POST"):
            assert locked_door.send(method, path)[0] == (
                200 if path in OPEN and method == "GET" else 401
            ) or (path in OPEN)
    for path in (
        "/debug",
        "/debug/pprof",
        "/__debug__",
        "/console",
        "/run_script",
        "/eval",
        "/docs",
        "/redoc",
        "/env",
    ):
        assert locked_door.send("GET", path)[0] == 401
        assert locked_door.send("GET", path, headers=key)[0] == 404


def test_nothing_logs_the_key(locked_door):
    server: Server = locked_door.server
    locked_door.send("GET", "/v1/models", headers={"Authorization": "Bearer sk-wrong-secret"})
    in_headers = [line for line in server.lines if f"={KEY}" not in line and f"/{KEY}" not in line]
    assert KEY not in "".join(
        in_headers
    )  # the address of a request is logged, keys are no part of it
    assert "sk-wrong-secret" not in server.output
