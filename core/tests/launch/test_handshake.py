"""HELLO, INIT, READY: both sides over real sockets, and every way it can go wrong (HS-1 to HS-16, Q13)."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import msgspec
import pytest
import zmq

from tenonry.errors import LaunchError
from tenonry.interfaces.coordination import FleetCompanion
from tenonry.launch import handshake
from tenonry.launch.handshake import CoreEngine, Handshake
from tenonry.messages import (
    PROTOCOL_VERSION,
    EngineFacts,
    FailedMessage,
    HandshakeMetadata,
    ReadyMessage,
)
from tenonry.transport.sockets import make_socket
from tenonry_testkit.kernel.handshake import METADATA, PLAN, Launcher, hello

COMPARE = "compare --data-parallel-size-local and --data-parallel-start-rank of all nodes"
FACTS = EngineFacts(
    index=0, epoch=4, num_gpu_blocks=10, block_size=16, max_model_len=100, resolved={"x": "y 1"}
)
READY = ReadyMessage(facts=FACTS)


@pytest.fixture
def patient(monkeypatch):
    """On a busy machine a message is longer on its way than a front end waits for the next one."""
    monkeypatch.setattr(handshake, "POLL_MS", 10_000)


class TestGoodOrder:
    def test_hello_init_ready(self, front_end):
        """HS-2, HS-4, HS-5, HS-15."""
        front = front_end()
        engine = front.engines[0]
        assert engine.index == 0
        assert engine.local is True
        assert engine.state == handshake.NEW
        front.send(hello(), READY)
        assert front.run() == [FACTS]
        init = msgspec.msgpack.decode(front.dealers[0].recv(), type=HandshakeMetadata)
        assert init == METADATA
        assert engine.state == handshake.READY

    def test_several_engines_in_any_order(self, front_end):
        """HS-1, HS-16: identities are two bytes, little endian; blocks are summed by the caller."""
        front = front_end(CoreEngine(0), CoreEngine(258), CoreEngine(1, local=False))
        front.send(hello(local=False), index=1)
        front.send(hello(), READY, index=258)
        fewer = msgspec.structs.replace(FACTS, num_gpu_blocks=7)
        front.send(ReadyMessage(facts=fewer), index=1)
        front.send(hello(), READY, index=0)
        assert sum(facts.num_gpu_blocks for facts in front.run()) == 27

    @pytest.mark.usefixtures("patient")
    def test_a_child_that_ended_after_it_was_ready_is_not_reported_here(self, front_end):
        front = front_end()
        front.send(hello(), READY)
        front.run(engine_0=1)

    def test_pending_engines_are_reported(self, front_end, caplog, monkeypatch):
        """HS-12."""
        assert handshake.REPORT_EVERY_S == 10
        monkeypatch.setattr(handshake, "REPORT_EVERY_S", 0.0)
        front = front_end(CoreEngine(0), CoreEngine(1))
        front.send(hello())
        with caplog.at_level(logging.INFO):
            front.fails("not ready", timeout=0.3)
        assert "waiting for engine 0 (connected), engine 1 (new)" in caplog.text


class TestWhatGoesWrong:
    def test_no_engine_answers(self, front_end):
        """Q13: there is an overall deadline."""
        front_end(CoreEngine(0), CoreEngine(1)).fails(
            r"not ready after 0.05 s: engine 0 \(new\), engine 1 \(new\); raise --start-timeout",
            timeout=0.05,
        )

    def test_it_says_hello_and_no_more(self, front_end):
        front = front_end()
        front.send(hello())
        front.fails(r"engine 0 \(connected\)", timeout=0.3)

    @pytest.mark.parametrize(
        ("code", "text"), [(3, "engine 0: exit code 3"), (-9, "engine 0: signal SIGKILL")]
    )
    def test_a_child_exits(self, front_end, code, text):
        """HS-13."""
        front_end().fails(
            rf"exited before it was ready \({text}\); see its log lines", engine_0=code
        )

    def test_several_children_exit(self, front_end):
        front_end().fails(
            r"\(engine 0: exit code 1, engine 1: signal SIGTERM\)", engine_0=1, engine_1=-15
        )

    @pytest.mark.usefixtures("patient")
    def test_the_last_words_of_a_dead_child_say_more_than_its_exit_code(self, front_end):
        front = front_end()
        front.send(hello(), FailedMessage(error="no weights in /x"))
        front.fails("engine 0 could not start: no weights in /x", engine_0=1)

    @pytest.mark.usefixtures("patient")
    def test_last_words_that_are_still_on_their_way_are_awaited(self, front_end):
        front = front_end()
        front.send(hello())

        class Dying(Launcher):
            def finished(self) -> dict[str, int]:
                if not self.ended:
                    front.send(FailedMessage(error="no weights in /x"))
                self.ended = {"engine 0": 1}
                return self.ended

        with pytest.raises(LaunchError, match="no weights in /x"):
            front.shake.run(Dying().finished, 5.0)

    @pytest.mark.parametrize(
        ("timeout", "ended", "text"),
        [
            (0.05, {}, r"not ready after 0.05 s: engine 0 \(new\)"),
            (30.0, {"engine_0": 3}, "engine 0: exit code 3"),
        ],
        ids=["the deadline", "an exit"],
    )
    def test_reports_of_many_nodes_put_off_nothing(self, front_end, timeout, ended, text):
        """HS-13, Q13: each node reports every second, so with many of them there is always a message."""
        front, reports, most = front_end(), itertools.count(1), 500_000

        class Nodes(FleetCompanion):
            def receive(self, *_: Any) -> None:
                if next(reports) < most:
                    node.send(b"")

        nodes = Nodes()
        node = make_socket(front.context, zmq.DEALER, front.address, bind=False, identity=b"node")
        front.shake = Handshake(front.socket, front.engines, METADATA, PLAN, nodes)
        nodes.receive()
        front.fails(text, timeout, **ended)
        node.close()
        assert next(reports) < most

    def test_an_unknown_identity(self, front_end):
        """HS-14."""
        front = front_end()
        front.send(hello(), index=9)
        front.fails(f"engine 9 is none of those that start; {COMPARE}")

    @pytest.mark.parametrize("identity", [b"", b"s", b"stranger"])
    def test_a_stranger_is_not_answered(self, identity, front_end, caplog):
        """HS-14: whatever connects to the socket ends no start."""
        front = front_end()
        stranger = make_socket(front.context, zmq.DEALER, front.address, identity=identity)
        with stranger:
            stranger.send_multipart([b"\xc1", b""])
            assert front.socket.poll(10_000)
        front.send(hello(), READY)
        assert front.run() == [FACTS]
        assert "ignored a message from an unknown peer" in caplog.text

    @pytest.mark.parametrize(("expected", "found"), [("local", "remote"), ("remote", "local")])
    def test_the_wrong_side(self, front_end, expected, found):
        """HS-14."""
        front = front_end(CoreEngine(0, local=expected == "local"))
        front.send(hello(local=found == "local"))
        front.fails(f"engine 0 should be {expected}, but reports that it is not; {COMPARE}")

    @pytest.mark.parametrize(
        ("messages", "text"),
        [
            ((READY,), "local engine 0 sent READY while it was new"),
            ((hello(), hello()), "local engine 0 sent HELLO while it was connected"),
        ],
    )
    def test_a_message_out_of_order(self, front_end, messages, text):
        """HS-14."""
        front = front_end()
        front.send(*messages)
        front.fails(text)

    def test_a_message_after_the_last_one(self, front_end):
        front = front_end(CoreEngine(0), CoreEngine(1))
        front.send(hello(), READY, READY)
        front.fails("local engine 0 sent READY while it was ready")

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"\xc1",
            b"\x80",
            msgspec.msgpack.encode({"type": "HELLO"}),
            msgspec.msgpack.encode({"type": "X"}),
        ],
    )
    def test_garbage(self, front_end, raw):
        front = front_end()
        front.send(raw)
        front.fails("engine 0 sent an invalid handshake message")

    def test_another_protocol(self, front_end):
        front = front_end()
        front.send(hello(protocol=PROTOCOL_VERSION + 1))
        front.fails(
            f"engine 0 on node-a speaks protocol {PROTOCOL_VERSION + 1}, this front end {PROTOCOL_VERSION}"
        )

    @pytest.mark.parametrize(("versions", "theirs"), [({"acme": "2.1"}, "2.1"), ({}, "missing")])
    def test_another_version_of_a_plugin(self, front_end, versions, theirs):
        """Node, distribution and both versions are named."""
        front = front_end()
        front.send(hello(versions=versions))
        front.fails(
            rf"node node-a \(engine 0\) has acme {theirs}, this one has 2\.0; install the same version on both"
        )
