"""The engine's side of the handshake, alone and with a real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import zmq

from tenonry.engine import proc
from tenonry.engine.proc import EngineHandshake
from tenonry.errors import LaunchError, ModelError
from tenonry.interfaces.launcher import EngineSpec
from tenonry.messages import PROTOCOL_VERSION, EngineHandshakeMessage, FailedMessage
from tenonry.transport.folder import RunDirectory
from tenonry.transport.sockets import close_all, make_socket
from tenonry_testkit.kernel.handshake import METADATA, PLAN, hello
from tenonry_testkit.kernel.peer import Peer
from tenonry_testkit.roles import eventually


class TestEnginesSide:
    """The engine's half, in this process."""

    @pytest.fixture
    def router(self) -> Iterator[tuple[Any, Callable[..., EngineHandshake]]]:
        run, context = RunDirectory(), zmq.Context()
        socket = make_socket(context, zmq.ROUTER, run.address("handshake"), bind=True)
        made = []

        def engine(**fields: Any) -> EngineHandshake:
            spec = EngineSpec(
                engine_index=258, local_rank=0, handshake_address=run.address("handshake"), config_text="",
                plan_text=PLAN.encode(), model_text="", **fields,
            )  # fmt: skip
            made.append(EngineHandshake(context, spec))
            return made[-1]

        yield socket, engine
        close_all(socket, *(handshake._socket for handshake in made))
        context.destroy(linger=0)
        run.close()

    def receive(self, socket: Any) -> tuple[bytes, Any]:
        assert socket.poll(20_000)
        identity, body = socket.recv_multipart()
        return identity, msgspec.msgpack.decode(body, type=EngineHandshakeMessage)

    @pytest.mark.parametrize("local", [True, False])
    def test_it_says_who_it_is_and_what_it_found(self, router, local):
        """HS-6."""
        socket, engine = router
        handshake = engine(local=local)
        handshake._send(hello(local=local))
        identity, _ = self.receive(socket)
        assert identity == b"\x02\x01"
        socket.send_multipart([identity, msgspec.msgpack.encode(METADATA)])
        assert handshake.hello() == METADATA
        _, message = self.receive(socket)
        assert (message.local, message.protocol) == (local, PROTOCOL_VERSION)
        assert message.versions == {"acme": "missing"}
        assert message.node

    def test_it_lingers_five_seconds(self, router):
        """HS-6."""
        assert router[1]()._socket.linger == 5000

    def test_without_an_answer_it_gives_up_and_names_the_minutes(self, router, monkeypatch):
        """HS-7."""
        assert proc.HANDSHAKE_TIMEOUT_MINS == 5
        monkeypatch.setattr(proc, "HANDSHAKE_TIMEOUT_MINS", 0.001)
        with pytest.raises(
            LaunchError,
            match=r"no answer from the front end at ipc:///.*/handshake within 0\.001 minutes; "
            "start it, and compare address, port and keys",
        ):
            router[1]().hello()

    @pytest.mark.parametrize(
        ("error", "text"),
        [(ModelError("no weights"), "no weights"), (KeyError("x"), "KeyError: 'x'")],
    )
    def test_a_failure_is_told_in_words(self, router, error, text):
        socket, engine = router
        engine(local=False).failed(error)
        assert self.receive(socket)[1] == FailedMessage(error=text)


@pytest.mark.integration
class TestRealEngine:
    """The same with a process of its own."""

    @pytest.fixture
    def make_peer(self) -> Iterator[Callable[..., Peer]]:
        made: list[Peer] = []

        def make(**values: Any) -> Peer:
            made.append(Peer(**values))
            return made[-1]

        yield make
        for peer in made:
            peer.close()

    def test_ready_carries_what_only_a_built_engine_knows(self, make_peer):
        """HS-9."""
        peer = make_peer(num_gpu_blocks_override=8, block_size=4, max_model_len=20)
        peer.launch()
        peer.receive_handshake()
        peer.answer()
        ready = peer.receive_handshake().facts
        assert (ready.num_gpu_blocks, ready.block_size, ready.max_model_len) == (8, 4, 20)
        assert ready.resolved == {"fake": "tokens"}

    def test_an_engine_that_cannot_be_built_says_why_and_ends(self, make_peer, capfd):
        """HS-9: no READY; HS-13: the exit code is not 0; IO-13: the log distinguishes it from a death."""
        peer = make_peer(
            worker={
                "name": "tenonry_testkit.fakes:FakeWorker",
                "options": {"fail_load": "no weights in /x"},
            }
        )
        peer.launch()
        peer.receive_handshake()
        peer.answer()
        assert peer.receive_handshake() == FailedMessage(error="no weights in /x")
        eventually(lambda: peer.child.exit_code == 1)
        printed = capfd.readouterr().err
        assert "engine 3 could not be built" in printed
        assert "died" not in printed

    def test_what_it_was_told_is_applied(self, make_peer):
        """HS-8: the epoch is stamped on everything it sends (the peer checks)."""
        peer = make_peer()
        assert peer.start().call("check_health") is True

    @pytest.mark.parametrize(
        ("plugins", "theirs"),
        [({"scheduler": "'t' (a:C)"}, r"scheduler 't' \(a:C\)"), ({}, "scheduler none")],
    )
    def test_another_plugin(self, front_end, plugins, theirs):
        """Nodes that were given different flags."""
        front = front_end()
        front.send(hello(plugins=plugins))
        front.fails(
            rf"node node-a \(engine 0\) has {theirs}, this one has 's' \(a:B\); give both nodes the same flags"
        )
