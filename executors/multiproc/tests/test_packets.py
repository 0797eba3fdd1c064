from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tenonry.errors import (
    ConfigError,
    ModelError,
    PluginError,
    PluginFault,
    PluginNotFound,
    TenonryError,
    Unsupported,
    WireError,
)
from tenonry_executor_multiproc.packets import (
    Fault,
    PacketStream,
    describe_error,
    pack,
    packet_size,
    rebuild_error,
    unpack,
)

FRAMES = st.lists(st.binary(max_size=40), min_size=1, max_size=5)


@given(FRAMES, st.integers(0, 2**63), st.integers(0, 255), st.binary(max_size=20))
def test_a_packet_comes_back_and_its_frames_are_aligned(frames, sequence, kind, more):
    data = pack(kind, sequence, [memoryview(frame) for frame in frames])
    assert packet_size(data) == len(data)
    packet = unpack(data + more)
    assert (packet.kind, packet.sequence, [bytes(frame) for frame in packet.frames]) == (
        kind,
        sequence,
        frames,
    )
    assert len(data) % 8 == 0


@given(st.lists(FRAMES, max_size=5), st.lists(st.integers(1, 60), min_size=1, max_size=9))
def test_a_stream_is_cut_into_packets_wherever_it_was_cut_before(messages, cuts):
    packets = [pack(1, number, frames) for number, frames in enumerate(messages)]
    data, stream, found, at = b"".join(packets), PacketStream(), [], 0
    for cut in [*cuts, max(1, len(data))]:
        found += stream.feed(data[at : at + cut])
        at += cut
    assert found == packets


def test_a_packet_that_lies_is_refused():
    data = bytearray(pack(1, 2, [b"abc", b"d"]))
    with pytest.raises(WireError, match="came as"):
        unpack(bytes(data[:-1]))
    data[24] = 99
    with pytest.raises(WireError, match="holds frames"):
        unpack(bytes(data))


class Odd(Exception):
    pass


class Worse(ModelError):
    pass


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ConfigError("x=1"), ConfigError, "worker 0.3: x=1"),
        (Unsupported("no"), Unsupported, "worker 0.3: no"),
        (PluginNotFound("none"), PluginNotFound, "worker 0.3: none"),
        (Worse("bad"), ModelError, "worker 0.3: Worse: bad"),
        (TypeError("two"), TypeError, "worker 0.3: two"),
        (
            FileNotFoundError(2, "gone", "f"),
            OSError,
            "worker 0.3: FileNotFoundError: [Errno 2] gone: 'f'",
        ),
        (Odd(), TenonryError, "worker 0.3: Odd: no text"),
        (NotImplementedError("later"), RuntimeError, "worker 0.3: NotImplementedError: later"),
    ],
)
def test_errors_come_out_as_what_they_were(error, kind, text):
    again = rebuild_error(describe_error(error), "worker 0.3")
    assert (type(again), str(again)) == (kind, text)


def test_an_error_that_takes_more_than_a_text_keeps_its_text():
    fault = PluginFault("p", "dist", "1.0", "load", ValueError("v"))
    again = rebuild_error(describe_error(fault), "worker 0.0")
    assert "plugin p (dist 1.0) failed in load: ValueError: v" in str(again)
    assert isinstance(again, PluginError)
    assert again.plugin == "p"


def test_an_unknown_type_is_still_an_error():
    assert type(rebuild_error(Fault("Nonsense", "t"), "w")) is TenonryError
