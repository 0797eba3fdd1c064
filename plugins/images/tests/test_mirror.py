"""A front end omits only images that the engine has, whatever happened between them (MM-1, EC-14)."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tenonry.config import EngineConfig
from tenonry.errors import RequestError
from tenonry.interfaces.plugin import PluginContext
from tenonry.messages import EngineCoreRequest, FinishedOutput
from tenonry.outputs import FinishReason
from tenonry.plugin.manager import PluginManager
from tenonry.sampling_params import SamplingParams
from tenonry.step import Media
from tenonry.transport.serial import Encoder
from tenonry_images.checks import check_media
from tenonry_images.mirror import MIB, NOT_CACHED, ImageMirror

QUARTER = MIB // 4
HANDLES = itertools.count(1)


def failed(asked, code=NOT_CACHED):
    return FinishedOutput(asked.handle, FinishReason.ERROR, error="it failed", code=code)


def image(number):
    """Image `number`: its digest, and inputs that say which one it is; from 5 on larger than all that is kept."""
    size = 2 * MIB if number >= 5 else QUARTER + number * 1000
    return bytes([number]) * 32, {"pixels": np.full(size, number, np.uint8), "grid": np.ones(3)}


def request(numbers, **fields):
    media = None
    if numbers:
        images = [image(number) for number in numbers]
        spans = [[2 * place, 1] for place in range(len(numbers))]
        digests = np.frombuffer(b"".join(digest for digest, _ in images), np.uint8)
        media = Media(np.array(spans), digests.reshape(-1, 32), [inputs for _, inputs in images])
    return EngineCoreRequest(
        handle=next(HANDLES), request_id="r", prompt_token_ids=np.arange(20, dtype=np.int32),
        sampling_params=SamplingParams(), media=media, **fields,
    )  # fmt: skip


def codec(mib=1):
    return ImageMirror(PluginContext(EngineConfig(model="m", max_images=9, mm_cache_mib=mib)))


def peer(index=0):
    return SimpleNamespace(index=index, requests={})


class Pair:
    """A front end, and one engine after another."""

    def __init__(self, mib=1):
        self.front = codec(mib)
        self.restart()

    def restart(self):
        self.peer = peer()
        self.engine = codec(0)

    def send(self, asked, *, is_lost=False):
        """The bytes of the message, and what the engine makes of it; None for one that is lost."""
        frames = self.front.encode(asked, self.peer)
        self.peer.requests[asked.handle] = asked
        size = sum(len(frame) for frame in frames)
        if is_lost:
            return size, None
        return size, self.engine.decode(frames, 0)

    def ended(self, outcome):
        """True if the request is to be sent again."""
        return self.front.ended(self.peer, outcome, self.peer.requests.pop(outcome.handle, None))


def same(asked, got):
    encode = Encoder().encode
    assert encode(got.media) == encode(asked.media)


def test_an_image_crosses_once():
    pair = Pair()
    first, got = pair.send(request([1, 2]))
    again, same_again = pair.send(request([2, 1, 2]))
    assert first > 2 * QUARTER
    assert again < 2000
    same(request([1, 2]), got)
    same(request([2, 1, 2]), same_again)
    check_media(same_again, None)


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
    assert pair.engine.kept[0][1] == {}


def test_each_front_end_and_each_engine_are_a_pair_of_their_own():
    one, two = Pair(), Pair()
    two.engine = one.engine
    one.send(request([1]))
    frames = two.front.encode(request([1]), two.peer)
    same(request([1]), two.engine.decode(frames, 1))
    assert sum(map(len, one.front.encode(request([1]), peer(1)))) > QUARTER


def test_a_message_that_cannot_be_sent_leaves_nothing_behind():
    pair = Pair()
    with pytest.raises(RequestError, match="request r cannot be sent"):
        pair.send(request([1], kv_transfer_params={"a": object()}))
    _, got = pair.send(request([1]))
    same(request([1]), got)


def test_a_reset_has_both_sides_forget():
    pair = Pair()
    pair.send(request([1, 2]))
    pair.front.forget()
    size, got = pair.send(request([1]))
    assert size > QUARTER
    same(request([1]), got)
    assert len(pair.engine.kept[0][1]) == 1


@pytest.mark.parametrize("header", [[], [1, 2, 2], [7, 2], [7], None])
def test_a_header_that_does_not_fit_is_refused(header):
    asked = request([1])
    if header is not None:
        parts = {"header": np.array(header, np.int64), "dropped": np.empty((0, 32), np.uint8)}
        asked.media.inputs.append(parts)
    frames = Encoder().encode(asked)
    with pytest.raises(RequestError, match="not cached by this engine") as raised:
        codec().decode(frames, 0)
    assert raised.value.code == NOT_CACHED


def test_a_request_that_named_a_lost_image_is_sent_once_more_with_all_of_its_images():
    pair = Pair()
    pair.send(request([1]))
    pair.engine.forget(0)
    first, second = request([1, 2]), request([2, 1])
    for asked in (first, second):
        with pytest.raises(RequestError, match="not cached"):
            pair.send(asked)
    for asked in (first, second):
        assert pair.ended(failed(asked))
        size, got = pair.send(asked)
        assert size > 2 * QUARTER
        same(asked, got)
    for asked in (first, second):
        assert not pair.ended(failed(asked))


def test_one_that_was_sent_again_goes_on_in_another_engine_with_its_images():
    """The engine dies after that (AF-24)."""
    pair = Pair()
    pair.send(request([1]))
    pair.engine.forget(0)
    asked = request([1, 2])
    with pytest.raises(RequestError, match="not cached"):
        pair.send(asked)
    assert pair.ended(failed(asked))
    pair.send(asked)
    pair.restart()
    _, got = pair.send(asked)
    same(asked, got)


def test_one_that_named_a_lost_image_before_a_reset_is_sent_again():
    pair = Pair()
    asked = request([1])
    pair.send(asked, is_lost=True)
    pair.front.forget()
    assert pair.ended(failed(asked))


@pytest.mark.parametrize("code", ["", "invalid_request"])
def test_one_that_failed_otherwise_is_not_sent_again(code):
    pair = Pair()
    asked = request([1])
    pair.send(asked)
    assert not pair.ended(failed(asked, code))


def test_one_that_was_aborted_is_not_sent_again():
    pair = Pair()
    asked = request([1])
    pair.send(asked)
    del pair.peer.requests[asked.handle]
    assert not pair.ended(failed(asked))


def test_images_of_a_client_that_is_gone_are_forgotten():
    pair = Pair()
    pair.send(request([1]))
    other = codec().encode(request([2]), peer())
    pair.engine.decode(other, 1)
    for client in (0, 0, 5):
        pair.engine.forget(client)
    assert list(pair.engine.kept) == [1]


OPS = st.lists(
    st.one_of(
        st.lists(st.integers(0, 5), max_size=4),
        st.lists(st.integers(0, 5), max_size=4),
        st.sampled_from(("lost", "reset", "restart", "front ends", "unsendable")),
    ),
    max_size=30,
)


@given(OPS)
def test_no_order_of_events_gives_a_wrong_image(ops):
    """Received requests equal those sent; after a loss a request may be sent again, and the next one is not."""
    pair = Pair()
    has_lost = False
    for op in ops:
        if op == "reset":
            pair.front.forget()
        elif op == "restart":
            pair.restart()
        elif op == "front ends":
            pair.front = codec()
        elif op == "lost":
            pair.send(request([1, 3]), is_lost=True)
            has_lost = True
        elif op == "unsendable":
            with pytest.raises(RequestError):
                pair.send(request([2, 4], kv_transfer_params={"a": object()}))
        else:
            asked = request(op)
            try:
                _, got = pair.send(asked)
            except RequestError:
                assert has_lost
                assert pair.ended(failed(asked))
                _, got = pair.send(asked)
                has_lost = False
            same(request(op), got)
            kept = pair.engine.kept.get(0, (0, {}))[1]
            num_bytes = sum(array.nbytes for each in kept.values() for array in each.values())
            assert has_lost or num_bytes <= MIB


@pytest.mark.parametrize(
    ("fields", "is_used"),
    [({"max_images": 1}, True), ({}, False), ({"max_images": 1, "mm_cache_mib": 0}, False)],
)
def test_it_is_the_default_where_requests_bring_images(fields, is_used):
    config = EngineConfig(model="m", **fields)
    record = PluginManager(config.plugins).resolve("request_codec", config.request_codec, config)
    assert (record.target == "tenonry_images.mirror:ImageMirror") == is_used
