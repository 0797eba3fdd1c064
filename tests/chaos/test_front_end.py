"""Faults of the front end itself: nothing can continue, and every client receives an error."""

from __future__ import annotations

import psutil
import pytest
from server_process import eventually

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]


def test_an_exception_of_its_own_ends_everything_in_order(serve):
    """AF-5."""
    disturbed = serve("client.before_receive=raise:KeyError@20")
    server = disturbed.server.ready()
    pids = set(server.pids().values())
    ledgers = disturbed.run()
    assert all(ledger.error or ledger.is_done for ledger in ledgers.values())
    assert any(ledger.error for ledger in ledgers.values())
    assert server.output.count("the output handler failed") == 1
    assert server.end() == 1
    eventually(lambda: not any(map(psutil.pid_exists, pids)))
    assert list(disturbed.sockets.iterdir()) == []
