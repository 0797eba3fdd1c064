"""A request that has ended leaves nothing behind that only a full garbage collection would find."""

from __future__ import annotations

import gc
import json
import socket

import pytest


@pytest.mark.parametrize("stream", [False, True])
def test_requests_leave_no_reference_cycles(stream, live, eventually):
    """A flood left hundreds of thousands of objects, and collecting them held the event loop for half a second."""
    body = json.dumps({"prompt": "x", "max_tokens": 3, "stream": stream}).encode()
    request = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    )

    def ask() -> None:
        with socket.create_connection(("127.0.0.1", live.port), timeout=20) as sock:
            sock.sendall(request + body)
            while sock.recv(65536):
                pass
        eventually(lambda: not live.state.active)

    ask()  # what is made once
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(5):
            ask()
        live.call(lambda: None)
        gc.collect()
        kept = {type(found).__name__ for found in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not kept & {"RequestResponseCycle", "DisconnectWatch", "AsyncExitStack", "Task", "frame"}
