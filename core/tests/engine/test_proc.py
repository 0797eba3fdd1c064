"""A real engine process and a front end played by hand: frames, signals, ends (IO-1 to IO-13, Q15, fault 21)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenonry.launch.supervise import STOP_SIGNAL
from tenonry.messages import ADD_HEADER, EngineCoreRequest, RequestType
from tenonry.outputs import FinishReason
from tenonry_testkit.fakes import TokenModel
from tenonry_testkit.kernel.engine import request
from tenonry_testkit.kernel.peer import EPOCH, IDENTITY, Peer
from tenonry_testkit.roles import eventually

pytestmark = pytest.mark.integration

SLOW = {"name": "tenonry_testkit.kernel.faulty:FaultyWorker", "options": {"delay_s": 0.02}}
ADD, ABORT, UTILITY = RequestType.ADD.value, RequestType.ABORT.value, RequestType.UTILITY.value


@pytest.fixture(scope="module")
def shared() -> Iterator[Peer]:
    """One engine for tests after which it must be as good as new."""
    peer = Peer(clients=2, worker="tenonry_testkit.kernel.faulty:FaultyWorker")
    yield peer.start()
    peer.close()


@pytest.fixture
def engine(shared: Peer) -> Iterator[Peer]:
    """The shared engine; afterwards it still serves."""
    yield shared
    source = request(next(HANDLES))
    shared.add(source)
    assert shared.until_finished(source.handle).tokens[source.handle] == tokens_of(source)
    assert shared.child.exit_code is None


FRAMES = st.binary(max_size=40) | st.sampled_from([ADD, ABORT, UTILITY, b"\x01" + b"\0" * 7])
HANDLES = iter(range(1_000_000, 2_000_000))


def tokens_of(source: EngineCoreRequest) -> list[int]:
    ids, params = source.prompt_token_ids.tolist(), source.sampling_params
    return (
        TokenModel(512)
        .complete(ids, params, max_model_len=64, stop_ids=source.stop_token_ids)
        .token_ids
    )


def test_the_types_of_messages_are_bytes_that_every_front_end_knows():
    """IO-2: a change of one of them requires a new PROTOCOL_VERSION."""
    assert [(kind.name, kind.value) for kind in RequestType] == [
        ("ADD", b"\0"),
        ("ABORT", b"\1"),
        ("UTILITY", b"\3"),
    ]


class TestRequests:
    def test_tokens_come_to_the_client_that_asked(self, engine):
        """IO-4, IO-5."""
        first, second = request(1, [5, 6]), request(1, [7], client=1, max_tokens=20)
        engine.add(first)
        engine.add(second, client=1)
        assert engine.until_finished(first.handle).tokens[first.handle] == tokens_of(first)
        assert engine.until_finished(second.handle, client=1).tokens[second.handle] == tokens_of(
            second
        )

    def test_a_large_prompt_travels_out_of_band(self, start):
        """IO-7."""
        peer = start(max_model_len=6000, max_num_batched_tokens=8192, facts={"max_model_len": 6000})
        source = request(1, np.arange(5000) % 512, max_tokens=1)
        assert source.prompt_token_ids.nbytes > 16_384
        peer.add(source)
        assert peer.until_finished(1).finished[1].reason is FinishReason.LENGTH

    def test_an_aborted_request_says_no_more(self, start):
        peer = start(worker=SLOW)
        peer.add(request(1, max_tokens=50))
        peer.receive()
        peer.abort(1, 99)
        assert peer.call("request_counts") == [0, 0]
        peer.add(request(2))
        finished: list[int] = []
        while 2 not in finished:
            finished += [output.handle for output in peer.receive().finished]
        assert finished == [2]

    def test_an_invalid_request_ends_alone_with_the_reason(self, engine):
        engine.add(request(2, [512]))
        assert "token id 512" in str(engine.until_finished(2).finished[2].error)

    def test_calls_are_answered_to_the_caller(self, engine):
        """IO-9."""
        assert engine.call("check_health", client=1) is True
        assert engine.call("call_workers", "echo", [1, "x"]) == [[0, 1, "x"]]
        with pytest.raises(RuntimeError, match="'os' is not a method of the engine"):
            engine.call("os")

    @pytest.mark.parametrize("method", ["too_large", "lone_surrogate", "unknown_type", "raises"])
    def test_a_call_whose_result_cannot_be_sent_is_answered(self, engine, method):
        with pytest.raises(RuntimeError, match=r"\w+Error: "):
            engine.call("call_workers", method)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_an_engine_without_work_sleeps(start):
    """IO-8."""
    process = psutil.Process(start().child.pid)

    def sleeps() -> bool:
        seen = []
        for _ in range(30):
            seen.append(process.status())
            time.sleep(0.01)
        return seen.count(psutil.STATUS_SLEEPING) > 20

    eventually(sleeps)  # once its start is over


def test_an_engine_whose_requests_all_wait_does_not_spin(start):
    """They may wait for the KV of a transfer; occasional polling is enough."""
    peer = start(
        scheduler={
            "name": "tenonry_testkit.kernel.faulty:FaultyScheduler",
            "options": {"idle": True},
        }
    )
    peer.add(request(1))
    assert peer.call("request_counts") == [0, 1]
    process = psutil.Process(peer.child.pid)
    before = process.num_ctx_switches().voluntary
    eventually(lambda: process.num_ctx_switches().voluntary > before + 20)


class TestGarbage:
    """Fault 21: counted, answered if a handle identifies the request, or dropped; the engine lives."""

    @pytest.mark.parametrize(
        "frames",
        [
            [b""],
            [b"\x09"],
            [b"\x00\x00"],
            [b"\x02", b"\x00"],
            [b"\x04"],
            [ADD],
            [ADD, b"\x01" * 8],
            [ADD, b"\x01" * 7, b"\x90"],
            [ADD, b"", b""],
            [ABORT],
            [ABORT, b"\xc1"],
            [ABORT, msgspec.msgpack.encode(["x"])],
            [ABORT, msgspec.msgpack.encode([2**63])],
            [UTILITY],
            [UTILITY, b""],
            [UTILITY, msgspec.msgpack.encode([1])],
            [UTILITY, msgspec.msgpack.encode(["x", 5])],
            [b"\xff" * 100_000],
            [b"x"] * 3000,
        ],
        ids=lambda frames: repr(frames)[:30],
    )  # fmt: skip
    def test_what_says_nothing_is_dropped(self, engine, frames):
        engine.send(*frames)
        assert engine.call("check_health") is True

    @pytest.mark.parametrize("cut", [0, 1, 10, -1])
    def test_a_body_that_cannot_be_decoded_is_answered_by_its_handle(self, engine, cut):
        handle = next(HANDLES)
        body = msgspec.msgpack.encode([handle, "r"])[: cut or None] if cut else b""
        engine.send(ADD, ADD_HEADER.pack(handle, EPOCH, 0), body)
        finished = engine.until_finished(handle).finished[handle]
        assert finished.reason is FinishReason.ERROR
        assert "a frame cannot be decoded" in str(finished.error)

    def test_parameters_out_of_bounds_are_answered_by_handle(self, engine):
        """The engine checks again, whatever the front end accepted."""
        handle = next(HANDLES)
        body = msgspec.msgpack.encode(
            [handle, "r", ["<i4", b"\x01\x00\x00\x00"], {"temperature": -1.0}]
        )
        engine.send(ADD, ADD_HEADER.pack(handle, EPOCH, 0), body)
        assert "temperature=-1.0 is out of bounds" in str(
            engine.until_finished(handle).finished[handle].error
        )

    def test_a_stale_epoch_is_refused(self, engine):
        handle = next(HANDLES)
        engine.add(request(handle), epoch=EPOCH - 1)
        assert f"epoch {EPOCH - 1}, the engine of {EPOCH}" in str(
            engine.until_finished(handle).finished[handle].error
        )

    def test_a_body_of_another_handle_is_refused(self, engine):
        handle = next(HANDLES)
        engine.add(request(handle), handle=handle + 1)
        assert f"the body is of handle {handle}" in str(
            engine.until_finished(handle + 1).finished[handle + 1].error
        )

    def test_a_handle_of_another_client_is_refused(self, engine):
        """Its tokens would go to another client, or to none."""
        for other in (1, 0xFFFF):
            source = request(next(HANDLES), client=other)
            engine.add(source)
            while not (finished := engine.receive().finished):
                pass  # statistics of what ran before
            assert finished[0].handle == source.handle
            assert f"belongs to client {other}, not to 0" in str(finished[0].error)

    def test_a_client_ends_no_request_of_another(self, engine):
        """An abort is not answered, so another client would wait for its request indefinitely."""
        other = request(next(HANDLES), client=1, max_tokens=30)
        engine.add(other, client=1)
        engine.abort(other.handle)
        assert engine.until_finished(other.handle, client=1).tokens[other.handle] == tokens_of(
            other
        )

    def test_a_handle_that_is_none_or_in_use_is_refused(self, engine):
        engine.add(request(0))
        assert "handle 0 is in use or invalid" in str(engine.until_finished(0).finished[0].error)

    def test_what_was_dropped_is_counted(self, start):
        peer = start()
        for _ in range(7):
            peer.send(b"\x09")
        peer.add(request(1))
        assert sum(stats.frames_dropped for stats in peer.until_finished(1).stats) == 7

    @settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.lists(
            st.binary(max_size=40) | st.sampled_from([ADD, ABORT, UTILITY, b"\x01" + b"\0" * 7]),
            min_size=1,
            max_size=5,
        )
    )
    def test_random_frames_on_the_input_socket(self, engine, frames):
        engine.send(*frames)

    def test_random_frames_on_the_handshake_are_a_failure_with_a_text(self):
        peer = Peer()
        peer.launch()
        peer.receive_handshake()
        peer.answer(b"\xc1")
        assert (
            "MessagePack" in peer.receive_handshake().error
            or "msgpack" in peer.receive_handshake().error.lower()
        )
        eventually(lambda: peer.child.exit_code == 1)
        peer.close()


class TestNumbers:
    """EC-15: the scheduler's numbers, which the client with index 0 gets."""

    def test_the_last_ones_come_when_work_is_over(self, start):
        peer = start()
        peer.add(request(1))
        numbers = peer.until_finished(1).stats
        assert numbers[0].num_running == 1
        while numbers[-1].num_running:
            numbers += numbers_of([peer.receive()])
        assert peer.rest() == []

    @pytest.mark.parametrize("times", [1, 2])
    def test_the_last_ones_come_before_an_orderly_end(self, start, times):
        peer = start(worker=SLOW)
        peer.add(request(1, max_tokens=5 if times == 1 else 50))
        heard = [peer.receive()]
        for _ in range(times):
            peer.child.process.send_signal(STOP_SIGNAL)
            heard.append(peer.receive())
        eventually(lambda: peer.child.exit_code == 0)
        assert numbers_of([*heard, *peer.rest()])[-1].num_running == 0


def numbers_of(outputs: list[Any]) -> list[Any]:
    return [output.scheduler_stats for output in outputs if output.scheduler_stats is not None]


def test_the_identity_and_the_process_title(start):
    peer = start()
    assert IDENTITY == b"\x03\x00"
    assert " ".join(psutil.Process(peer.child.pid).cmdline()).startswith("tenonry: engine 3")
    assert os.getpgid(peer.child.pid) == os.getpgid(0)
