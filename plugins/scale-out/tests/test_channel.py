"""The control channel between a supervisor and its API servers."""

from __future__ import annotations

from typing import Any

import msgspec
from front_end_fakes import FakeLink

from tenonry_scale_out.channel import ControlLink, ControlRouter
from tenonry_scale_out.messages import MetricsRequest, ReportReceived, Stop
from tenonry_testkit.roles import eventually


def test_messages_go_both_ways_and_bad_ones_are_dropped(tmp_path, caplog):
    address = f"ipc://{tmp_path}/c"
    got: list[Any] = []
    router = ControlRouter(lambda *message: got.append(message))
    router.bind(address)
    attachment = msgspec.structs.replace(
        FakeLink().attachment, identity="1.5", control_address=address
    )
    link = ControlLink(attachment)
    try:
        for frames in ([b"\xc1"], [b"\x91\xa2\xdbx"], [b"a", b"b"], [b""]):
            link._socket.send_multipart(frames)
        link.send(MetricsRequest(3))
        eventually(lambda: router.read(20) or got)
        assert got == [(b"1.5", MetricsRequest(3))]
        assert caplog.text.count("ignored an invalid message from API server 1.5") == 4
        router.send(b"1.5", Stop(False))
        router.send(b"9.9", ReportReceived())  # is not there
        assert link.receive(5000) == Stop(False)
        assert link.receive() is None
    finally:
        link.close()
        link.send(MetricsRequest(4))  # too late, and no error
        router.close()
