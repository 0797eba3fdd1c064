"""What a front end leaves out of a message is what the engine has, whatever happened between them (MM-1, EC-14)."""

from __future__ import annotations

from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tenonry.errors import WireError
from tenonry.features.checks import HEADER, check_features
from tenonry.features.mirror import MIB, MirrorEncoder, ReceivedImages
from tenonry.media import DIGESTS, SPANS, media_input
from tenonry.messages import (
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishedOutput,
    UtilityCall,
)
from tenonry.outputs import FinishReason
from tenonry.sampling_params import SamplingParams
from tenonry.transport.serial import Decoder

QUARTER = MIB // 4
FAILED = EngineCoreOutputs(finished=[FinishedOutput(1, FinishReason.ERROR, error="lost")])


def image(number):
    """Image `number`: its digest, and inputs that say which one it is; from 5 on larger than all that is kept."""
    size = 2 * MIB if number >= 5 else QUARTER + number * 1000
    return bytes([number]) * 32, {"pixels": np.full(size, number, np.uint8), "grid": np.ones(3)}


def request(numbers, **fields):
    features = None
    if numbers:
        images = [image(number) for number in numbers]
        spans = [[2 * place, 1] for place in range(len(numbers))]
        digests = np.frombuffer(b"".join(digest for digest, _ in images), np.uint8)
        features = {SPANS: np.array(spans), DIGESTS: digests.reshape(-1, 32)}
        for place, (_, inputs) in enumerate(images):
            features |= {media_input(place, name): array for name, array in inputs.items()}
    return EngineCoreRequest(
        handle=1, request_id="r", prompt_token_ids=np.arange(20, dtype=np.int32),
        sampling_params=SamplingParams(), features=features, **fields,
    )  # fmt: skip


def front_end(mib=1):
    return MirrorEncoder(SimpleNamespace(config=SimpleNamespace(mm_cache_mib=mib)))


class Pair:
    """A front end, and one engine after another."""

    def __init__(self, mib=1):
        self.front = front_end(mib)
        self.decoder = Decoder(EngineCoreRequest)
        self.restart()

    def restart(self):
        self.peer = SimpleNamespace(index=0)
        self.engine = ReceivedImages()

    def send(self, asked, *, is_lost=False):
        """The bytes of the message, and what the engine makes of it; None for one that is lost."""
        frames = self.front.encode(asked, self.peer)
        size = sum(len(frame) for frame in frames)
        if is_lost:
            return size, None
        got = self.decoder.decode(frames)
        self.engine.restore(0, got)
        return size, got


def same(asked, got):
    assert (got.features or {}).keys() == (asked.features or {}).keys()
    for name, array in (asked.features or {}).items():
        assert np.array_equal(got.features[name], array), name


def test_an_image_crosses_once():
    pair = Pair()
    first, got = pair.send(request([1, 2]))
    again, same_again = pair.send(request([2, 1, 2]))
    assert first > 2 * QUARTER
    assert again < 2000
    same(request([1, 2]), got)
    same(request([2, 1, 2]), same_again)
    check_features(same_again.features, 20)


def test_those_of_longest_ago_go_first_on_both_sides():
    pair = Pair()
    for numbers in ([1], [2], [3], [1], [4]):
        pair.send(request(numbers))
    _, kept = pair.engine.kept[0]
    assert [digest[0] for digest in kept] == [1, 3, 4]


def test_an_image_larger_than_all_that_is_kept_is_sent_each_time():
    pair = Pair()
    pair.send(request([1]))
    for _ in range(2):
        size, got = pair.send(request([5, 1]))
        assert size > 2 * MIB
        same(request([5, 1]), got)
    assert len(pair.engine.kept[0][1]) == 1


def test_with_nothing_to_keep_and_without_images_messages_are_what_they_were():
    pair = Pair(mib=0)
    for numbers in ([1], [1], []):
        _, got = pair.send(request(numbers))
        same(request(numbers), got)
    assert not pair.engine.kept


def test_each_front_end_and_each_engine_are_a_pair_of_their_own():
    one, two = Pair(), Pair()
    two.engine = one.engine
    one.send(request([1]))
    frames = two.front.encode(request([1]), two.peer)
    got = two.decoder.decode(frames)
    two.engine.restore(1, got)
    same(request([1]), got)
    other = SimpleNamespace(index=1)
    assert sum(map(len, one.front.encode(request([1]), other))) > QUARTER


def test_a_message_that_cannot_be_sent_leaves_nothing_behind():
    pair = Pair()
    with pytest.raises(TypeError):
        pair.send(request([1], kv_transfer_params={"a": object()}))
    _, got = pair.send(request([1]))
    same(request([1]), got)


def test_a_reset_has_both_sides_forget():
    pair = Pair()
    pair.send(request([1, 2]))
    pair.front.encode(UtilityCall(1, "reset_mm_cache"))
    size, got = pair.send(request([1]))
    assert size > QUARTER
    same(request([1]), got)
    assert len(pair.engine.kept[0][1]) == 1


@pytest.mark.parametrize(
    "header", [np.array([], np.int64), np.array([1, 2, 2]), np.array([7, 2]), np.array([7])]
)
def test_a_header_that_does_not_fit_is_refused(header):
    asked = request([1])
    asked.features[HEADER] = header
    with pytest.raises(WireError, match="not kept by this engine"):
        ReceivedImages().restore(0, asked)


OPS = st.lists(
    st.one_of(
        st.lists(st.integers(0, 5), max_size=4),
        st.lists(st.integers(0, 5), max_size=4),
        st.sampled_from(("lost", "reset", "restart", "front ends", "unsendable")),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(OPS)
def test_no_order_of_events_gives_a_wrong_image(ops):
    """What arrives is what was asked for; after a loss a request may fail, and the next one does not."""
    pair = Pair()
    has_lost = False
    for op in ops:
        if op == "reset":
            pair.front.encode(UtilityCall(1, "reset_mm_cache"))
        elif op == "restart":
            pair.restart()
        elif op == "front ends":
            pair.front = front_end()
        elif op == "lost":
            pair.send(request([1, 3]), is_lost=True)
            has_lost = True
        elif op == "unsendable":
            with pytest.raises(TypeError):
                pair.send(request([2, 4], kv_transfer_params={"a": object()}))
        else:
            try:
                _, got = pair.send(request(op))
            except WireError:
                assert has_lost
                assert pair.front.ended(pair.peer, FAILED) == [1]
                _, got = pair.send(request(op))
                has_lost = False
            same(request(op), got)
            kept = pair.engine.kept.get(0, (0, {}))[1]
            num_bytes = sum(array.nbytes for each in kept.values() for array in each.values())
            assert has_lost or num_bytes <= MIB
