"""Frames: encoded values round-trip, and any other input raises WireError only (IO-4, IO-7, fault 21)."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tenonry.errors import WireError
from tenonry.messages import EngineCoreOutputs, EngineCoreRequest, FinishedOutput, UtilityCall
from tenonry.outputs import FinishReason
from tenonry.sampling_params import SamplingParams
from tenonry.step import I32, Adapter, NewRow, SchedulerOutput, TokenLogprobs
from tenonry.transport import serial
from tenonry.transport.serial import INLINE_BYTES, MAX_FRAMES, Decoder, Encoder, to_plain

DTYPES = ["bool", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8"]
ARRAYS = hnp.arrays(
    st.sampled_from(DTYPES), hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)
)


class Letter(msgspec.Struct, array_like=True):
    """Something with arrays in every place where our messages have them."""

    first: np.ndarray
    more: list[np.ndarray] = []
    inner: Letter | None = None


class Typed(msgspec.Struct, array_like=True):
    rows: I32
    values: NDArray[np.float32]


def round_trip(message: Any, kind: Any) -> Any:
    return Decoder(kind).decode([bytes(frame) for frame in Encoder().encode(message)])


def same(left: np.ndarray, right: np.ndarray) -> bool:
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )


class TestRoundTrip:
    @given(ARRAYS, st.lists(ARRAYS, max_size=3), ARRAYS, st.sampled_from([0, 16, INLINE_BYTES]))
    def test_arrays_of_every_type_and_shape_come_back(self, first, more, inner, threshold):
        with mock.patch.object(serial, "INLINE_BYTES", threshold):
            back = round_trip(Letter(first, more, Letter(inner)), Letter)
        assert same(first, back.first)
        assert len(more) == len(back.more)
        assert all(map(same, more, back.more))
        assert same(inner, back.inner.first)

    @given(ARRAYS)
    def test_views_come_back_as_what_they_show(self, array):
        """A transposed or strided array is no contiguous run of bytes."""
        assert same(np.ascontiguousarray(array.T), round_trip(Letter(array.T), Letter).first)
        assert same(np.ascontiguousarray(array[::2]), round_trip(Letter(array[::2]), Letter).first)

    @given(
        st.sampled_from(["i2", "u4", "i8", "f4", "f8"]), st.lists(st.integers(0, 100), max_size=5)
    )
    def test_foreign_byte_order_is_converted(self, dtype, values):
        back = round_trip(Letter(np.array(values, f">{dtype}")), Letter).first
        assert back.dtype == np.dtype(dtype)
        assert back.dtype.isnative
        assert back.tolist() == values

    def test_a_request_comes_back(self):
        request = EngineCoreRequest(
            handle=2**48 + 7,
            request_id="r-1",
            prompt_token_ids=np.arange(5, dtype=np.int32),
            sampling_params=SamplingParams(temperature=0.5, stop=["a"], logit_bias={3: 1.5}),
            output_token_ids=[4, 5],
            stop_token_ids=(2,),
            bad_words=((1, 2), (3,)),
            tags={"tenant": "acme", "weight": 2.0},
            kv_transfer_params={"key": [1, "x"]},
        )
        back = round_trip(request, EngineCoreRequest)
        assert back.prompt_token_ids.tolist() == [0, 1, 2, 3, 4]
        back = msgspec.structs.replace(back, prompt_token_ids=request.prompt_token_ids)
        assert to_plain(back) == to_plain(request)

    @pytest.mark.parametrize("threshold", [0, INLINE_BYTES])
    def test_features_come_back_as_typed_arrays(self, threshold):
        """In a request to the engine, and in a row to the workers of another process."""
        features = {
            "pixels": np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4),
            "positions": np.arange(5, dtype=np.int64),
            "mask": np.array([[True, False]]),
            "scale": np.array(2.5, np.float32),
            "none": np.empty((0, 7), np.float32),
            "large": np.arange(INLINE_BYTES, dtype=np.int64),
        }
        params = SamplingParams()
        ids = np.arange(3, dtype=np.int32)
        adapter = Adapter("style", "1f")
        request = EngineCoreRequest(
            handle=1, request_id="r", prompt_token_ids=ids, sampling_params=params, adapter=adapter,
            features=features,
        )  # fmt: skip
        row = NewRow(
            row=0, handle=1, token_ids=ids, num_computed=0, num_output=0, block_ids=(ids,),
            sampling=params, adapter=adapter, features=features,
        )  # fmt: skip
        with mock.patch.object(serial, "INLINE_BYTES", threshold):
            request_back = round_trip(request, EngineCoreRequest)
            step_back = round_trip(SchedulerOutput(step_id=0, new=[row]), SchedulerOutput)
        for back in (request_back, step_back.new[0]):
            assert back.adapter == adapter
            assert back.features.keys() == features.keys()
            for name, array in features.items():
                assert same(array, back.features[name]), name

    def test_arrays_beyond_the_most_frames_travel_inline(self):
        """A step may start many requests with features together."""
        array = np.arange(3)
        with mock.patch.object(serial, "INLINE_BYTES", 0):
            frames = Encoder().encode(Letter(array, [array] * MAX_FRAMES))
        assert len(frames) == MAX_FRAMES
        back = Decoder(Letter).decode(frames)
        assert all(same(array, other) for other in back.more)

    def test_outputs_and_steps_come_back(self):
        outputs = EngineCoreOutputs(
            epoch=3,
            handles=np.array([2**63 + 1, 5], np.uint64),
            token_ids=np.array([1, 2, 3], np.int32),
            offsets=np.array([0, 1, 3], np.int32),
            finished=[FinishedOutput(5, FinishReason.STOP, stop_token_id=3)],
            logprobs=TokenLogprobs(
                np.array([0], np.int32),
                np.ones((1, 3), np.int32),
                np.ones((1, 3), np.float32),
                np.array([1], np.int32),
            ),
        )
        back = round_trip(outputs, EngineCoreOutputs)
        assert back.handles.tolist() == [2**63 + 1, 5]
        assert back.epoch == 3
        assert back.token_ids.tolist() == [1, 2, 3]
        assert back.offsets.tolist() == [0, 1, 3]
        assert back.finished == outputs.finished
        assert back.logprobs.logprobs.shape == (1, 3)
        row = NewRow(
            row=0, handle=1, token_ids=np.arange(3, dtype=np.int32), num_computed=0, num_output=0,
            block_ids=(np.arange(2, dtype=np.int32), np.arange(1, dtype=np.int32)), sampling=SamplingParams(),
        )  # fmt: skip
        step = round_trip(
            SchedulerOutput(step_id=4, new=[row], samples=np.array([True])), SchedulerOutput
        )
        assert [ids.tolist() for ids in step.new[0].block_ids] == [[0, 1], [0]]
        assert step.samples.dtype == np.bool_

    def test_numpy_numbers_travel_as_numbers(self):
        assert round_trip(UtilityCall(1, "x", [np.int64(3), np.float32(0.5), np.bool_(True)]), UtilityCall).args == [
            3, 0.5, True,
        ]  # fmt: skip


class TestOutOfBand:
    """IO-7: large arrays are frames of their own and are not copied."""

    def test_small_ones_are_inline_and_large_ones_are_frames(self):
        small, large = np.zeros(INLINE_BYTES, np.uint8), np.zeros(INLINE_BYTES + 1, np.uint8)
        assert len(Encoder().encode(Letter(small))) == 1
        frames = Encoder().encode(Letter(large, [large[: INLINE_BYTES // 2], large]))
        assert [len(frame) for frame in frames[1:]] == [INLINE_BYTES + 1] * 2

    def test_a_large_array_is_referenced_not_copied(self):
        large = np.zeros(INLINE_BYTES, np.int32)
        frames = Encoder().encode(Letter(large))
        large[5] = 9
        assert Decoder(Letter).decode(frames).first[5] == 9

    def test_a_decoded_frame_is_not_copied_and_cannot_be_written(self):
        frames = [
            bytes(frame) for frame in Encoder().encode(Letter(np.zeros(INLINE_BYTES, np.int32)))
        ]
        back = Decoder(Letter).decode(frames).first
        assert np.shares_memory(back, np.frombuffer(frames[1], np.int32))
        assert not back.flags.writeable

    def test_frames_may_be_memoryviews_or_zmq_frames(self):
        frames = Encoder().encode(Letter(np.arange(INLINE_BYTES, dtype=np.int32)))
        for wrap in (memoryview, lambda frame: zmq.Frame(bytes(frame))):
            wrapped = [frames[0], *(wrap(frame) for frame in frames[1:])]
            assert Decoder(Letter).decode(wrapped).first[-1] == INLINE_BYTES - 1

    def test_an_encoder_starts_afresh_after_each_message_and_after_a_failure(self):
        encoder, large = Encoder(), np.zeros(INLINE_BYTES, np.int32)
        with pytest.raises(TypeError, match="object"):
            encoder.encode(Letter(large, [object()]))  # type: ignore[list-item]
        assert len(encoder.encode(Letter(large))) == 2
        assert len(encoder.encode(Letter(large[:1]))) == 1


class TestGarbage:
    """Fault 21: for any input, the decoder raises WireError or returns a valid message."""

    KINDS = (EngineCoreRequest, EngineCoreOutputs, SchedulerOutput, UtilityCall, Letter, list[int])

    @given(st.sampled_from(KINDS), st.lists(st.binary(max_size=64), max_size=4))
    def test_random_bytes(self, kind, frames):
        only_wire_errors(kind, frames)

    @given(st.sampled_from(KINDS), st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8)
        | st.binary(max_size=16) | st.sampled_from(["<i4", "<u8", "i4,(", "O", "V8", "<f4", "i4,", "M8[s]"]),
        lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ), st.lists(st.binary(max_size=16), max_size=3))  # fmt: skip
    def test_well_formed_msgpack_of_the_wrong_shape(self, kind, value, buffers):
        only_wire_errors(kind, [msgspec.msgpack.encode(value), *buffers])

    @given(st.data())
    def test_a_message_with_flipped_or_missing_bytes(self, data):
        frames = [
            bytes(frame)
            for frame in Encoder().encode(Letter(np.arange(6).reshape(2, 3), [np.zeros(20_000)]))
        ]
        body = bytearray(frames[0])
        for _ in range(data.draw(st.integers(1, 3))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(body)))
        only_wire_errors(Letter, [bytes(body), frames[1]])
        only_wire_errors(Letter, [bytes(body[:cut]), frames[1]])
        only_wire_errors(
            Letter, [frames[0], frames[1][: data.draw(st.integers(0, len(frames[1]) - 1))]]
        )

    @pytest.mark.parametrize(
        "array",
        [
            ["i4,(", b""],  # numpy parses this text as Python
            ["<i4", [2**64 - 1], b""],  # no C integer
            ["<i4", [3], b"1234"],
            ["<i4", [-1, 0], b""],
            ["O", b"12345678"],
            ["<M8[s]", b"12345678"],
            ["<c8", b"12345678"],
            [">i4", b"1234"],
            [None, b"12345678"],
            [{"names": ["a"], "formats": ["i4"]}, b"1234"],
            ["<i4", b"123"],
            ["<i4", "1234"],
            ["<i4", None],
            ["<i4", 1],  # no such frame
            ["<i4", 0],  # the body is no array
            ["<i4", -1],
            ["<i4", True],
            ["<i4", 1.0],
            ["<i4"],
            [],
            7,
            {"a": 1},
        ],
        ids=repr,
    )
    def test_what_is_no_array_is_refused(self, array):
        with pytest.raises(WireError, match="cannot be decoded"):
            Decoder(Letter).decode([msgspec.msgpack.encode([array])])

    def test_an_array_of_another_type_than_declared_is_refused(self):
        """Token ids that are floats, or 64-bit numbers, would reach numpy columns and be truncated silently."""
        values = np.zeros(2, np.float32)
        for bad in (
            values,
            np.array([2**31]),
            np.array([2**32 - 1], np.uint32),
            np.array([np.nan]),
        ):
            with pytest.raises(WireError, match="does not fit into int32"):
                round_trip(Typed(bad, values), Typed)

    def test_numbers_that_fit_are_brought_to_the_declared_type(self):
        back = round_trip(Typed(np.array([[1, -2]]), np.array([0.5])), Typed)
        assert back.rows.dtype == np.int32
        assert back.rows.tolist() == [[1, -2]]
        assert back.values.dtype == np.float32
        assert back.values.tolist() == [0.5]

    @pytest.mark.parametrize("count", [0, MAX_FRAMES + 1])
    def test_the_number_of_frames_is_bounded(self, count):
        with pytest.raises(WireError, match=f"{count} frames; 1 to {MAX_FRAMES}"):
            Decoder(Letter).decode([b""] * count)

    def test_deep_nesting_is_refused(self):
        with pytest.raises(WireError):
            Decoder(UtilityCall).decode([b"\x91" * 100_000])

    def test_a_decoder_is_usable_after_a_failure(self):
        decoder: Decoder[Letter] = Decoder(Letter)
        only_wire_errors(Letter, [b"\xc1"], decoder)
        assert decoder.decode(Encoder().encode(Letter(np.ones(1)))).first.tolist() == [1.0]


def only_wire_errors(kind: Any, frames: list[bytes], decoder: Decoder[Any] | None = None) -> None:
    with contextlib.suppress(WireError):
        (decoder or Decoder(kind)).decode(frames)


class TestWhatCannotBeSent:
    @pytest.mark.parametrize(
        "thing", [object(), np.array(["text"]), np.array([None]), np.array(["1"], "M8[s]"), {1j}]
    )
    def test_is_refused_by_type(self, thing):
        with pytest.raises(TypeError, match="cannot be sent to another process"):
            Encoder().encode([thing])


class TestToPlain:
    """Answers of utility calls have no declared type: they become lists, dicts, numbers, texts and bytes."""

    def test_arrays_structs_and_numbers(self):
        plain = to_plain(
            {
                "a": np.arange(3),
                "b": np.float32(0.5),
                "c": (1, {2}),
                "d": SamplingParams(n=2),
                "e": b"\x00",
            }
        )
        assert plain == {"a": [0, 1, 2], "b": 0.5, "c": (1, [2]), "d": {"n": 2}, "e": b"\x00"}

    def test_anything_else_is_refused(self):
        with pytest.raises(TypeError, match="object cannot be sent"):
            to_plain([object()])
