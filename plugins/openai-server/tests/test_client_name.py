"""A client is a key, else an address, else a connection, else a request."""

from __future__ import annotations

import asyncio

import pytest

from tenonry_helper_pool.client import current_client
from tenonry_openai_server.admission import TENANT
from tenonry_openai_server.client_name import ClientName, client_of


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        ({TENANT: "abc", "client": ("192.0.2.1", 5)}, "key abc"),
        ({"client": ("192.0.2.1", 5)}, "192.0.2.1"),
        ({"client": ("127.0.0.1", 5)}, "127.0.0.1 5"),
        ({"client": ("::1", 5)}, "::1 5"),
        ({"client": ("", 0)}, ""),
        ({"client": None}, ""),
        ({}, ""),
    ],
)
def test_the_best_that_is_known(scope, name):
    assert client_of(scope) == name


def test_what_a_request_causes_knows_its_client():
    seen = []

    async def app(scope, receive, send):
        seen.append(await asyncio.to_thread(current_client))

    async def main() -> None:
        layer = ClientName(app)
        scopes = [{"client": (f"192.0.2.{number}", 1)} for number in range(3)]
        await asyncio.gather(*(layer(scope, None, None) for scope in scopes))
        await layer({}, None, None)
        await layer({}, None, None)

    asyncio.run(main())
    assert seen[:3] == ["192.0.2.0", "192.0.2.1", "192.0.2.2"]
    assert seen[3] != seen[4]
