"""Simultaneous connections are distributed over the servers of one socket."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

import pytest

from tenonry_openai_server.acceptor import MAX_ACCEPTED_PER_TURN
from tenonry_openai_server.http_server import HTTPServer, make_server


def counts_after_burst(
    api, num_servers: int, num_connections: int, *, is_shared: bool
) -> list[int]:
    """Connections of each server, once all that had waited before the start are accepted."""

    async def main(open_files: ExitStack) -> list[int]:
        first = open_files.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
        socks = [first, *(open_files.enter_context(first.dup()) for _ in range(num_servers - 1))]
        for _ in range(num_connections):
            open_files.enter_context(socket.create_connection(first.getsockname()))
        servers = [
            make_server(api.app, api.state.settings, is_shared=is_shared)
            for _ in range(num_servers)
        ]
        for server, sock in zip(servers, socks, strict=True):
            server.lifespan = server.config.lifespan_class(server.config)
            await server.startup([sock])
        try:
            return await _settled_counts(servers, num_connections)
        finally:
            for server in servers:
                await server.shutdown()

    with ExitStack() as open_files:
        return api.run(main(open_files))


async def _settled_counts(servers: list[HTTPServer], total: int) -> list[int]:
    async with asyncio.timeout(20):
        while True:
            counts = [len(server.server_state.connections) for server in servers]
            if sum(counts) == total:
                return counts
            await asyncio.sleep(0)


@pytest.mark.parametrize("num_servers", [2, 4])
def test_servers_that_share_a_socket_get_equal_parts_of_a_burst(api, num_servers):
    counts = counts_after_burst(api, num_servers, 32, is_shared=True)
    assert counts == [32 // num_servers] * num_servers


def test_one_server_accepts_many_in_a_turn(api):
    """The second one represents a later iteration."""
    total = MAX_ACCEPTED_PER_TURN
    assert counts_after_burst(api, 2, total, is_shared=False) == [total, 0]
