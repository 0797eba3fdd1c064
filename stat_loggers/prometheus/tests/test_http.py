"""The metrics port: answers scrapes and rejects other requests; a port in use is an error."""

from __future__ import annotations

import http.client
import socket

import pytest

from tenonry.errors import ConfigError
from tenonry.stats import IterationStats, StatRecord


def get(
    port: int, path: str, method: str = "GET", host: str = "127.0.0.1"
) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers.get("Content-Type", ""), response.read()
    finally:
        connection.close()


def test_port_answers_scrapes(make_logger):
    logger = make_logger(port=0, process_metrics=False)
    stats = IterationStats(num_generation_tokens=5)
    logger.record(StatRecord(engine_index=0, time=0.0, iteration=stats))
    assert get(logger.port, "/metrics") == (200, logger.render()[1], logger.render()[0])
    assert get(logger.port, "/metrics?x=1")[0] == get(logger.port, "/")[0] == 200


def test_port_refuses_other_paths_and_methods(make_logger):
    port = make_logger(port=0).port
    assert get(port, "/metrics/../etc")[0] == 404
    assert get(port, "/metrics", "POST")[0] == 501


def test_port_in_use_stops_the_start(make_logger):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"port={port}.*cannot be bound.*choose another port"
        ):
            make_logger(port=port)


def test_unknown_host_stops_the_start(make_logger):
    with pytest.raises(ConfigError, match=r"256\.0\.0\.1:0 cannot be bound"):
        make_logger(port=0, host="256.0.0.1")


def test_shutdown_frees_the_port(make_logger):
    logger = make_logger(port=0)
    port = logger.port
    logger.shutdown()
    with socket.create_server(("127.0.0.1", port)):
        pass
    logger.shutdown()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_ipv6_address(make_logger):
    assert get(make_logger(port=0, host="::1").port, "/metrics", host="::1")[0] == 200
