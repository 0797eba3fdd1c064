"""Every field of SamplingParams is bounded, when it is built and when it is decoded."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonry.errors import RequestError, TenonryError
from tenonry.sampling_params import (
    MAX_BAD_WORDS,
    MAX_GRAMMAR_BYTES,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_START_AFTER,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOKENS,
    OutputKind,
    PoolingParams,
    SamplingParams,
    StructuredOutput,
)

FIELDS = SamplingParams.__struct_fields__
# field: (accepted at the bound, rejected just outside)
BOUNDS: dict[str, tuple[list[Any], list[Any]]] = {
    "n": ([1, MAX_N], [0, MAX_N + 1, 1.5, True, "2", None]),
    "temperature": ([0, 0.0, 100.0, 1e-9], [-1e-9, 100.1, math.nan, math.inf, "1", True, None]),
    "top_p": ([1e-9, 1.0, 1], [0.0, -0.1, 1.0001, math.nan, None]),
    "top_k": ([-1, 0, 2**31 - 1], [-2, 2**31, 1.5, math.nan, None]),
    "min_p": ([0.0, 1.0], [-0.01, 1.01, math.nan, None]),
    "seed": ([None, -(2**63), 2**63 - 1], [-(2**63) - 1, 2**63, 1.0, "1", False]),
    "max_tokens": ([None, 1, MAX_TOKENS], [0, -1, MAX_TOKENS + 1, 16.0]),
    "min_tokens": ([0, 16], [-1, 17, 1.0, None]),
    "stop": ([None, "x", ["x", "y"], ("x",), "x" * MAX_STOP_STRING_CHARS, ["x"] * MAX_STOP_STRINGS],
             ["", [""], "x" * (MAX_STOP_STRING_CHARS + 1), ["x"] * (MAX_STOP_STRINGS + 1), 5, [5], b"x", {"x": 1}]),
    "stop_token_ids": ([None, [], [0, 2**31 - 1], (1,), [1] * MAX_STOP_TOKEN_IDS],
                       [[-1], [2**31], ["1"], [1.0], [True], [1] * (MAX_STOP_TOKEN_IDS + 1), 5, "12"]),
    "ignore_eos": ([True, False], [1, "yes", None]),
    "include_stop_str_in_output": ([True, False], [1, "yes", None]),
    "skip_special_tokens": ([True, False], [0, "no", None]),
    "presence_penalty": ([-2.0, 2], [-2.1, 2.1, math.nan, None]),
    "frequency_penalty": ([-2, 2.0], [-2.1, 2.1, math.nan, None]),
    "repetition_penalty": ([0.01, 100], [0.0, 0.0099, 100.1, math.nan, None]),
    "logit_bias": ([None, {}, {0: 100, 2**31 - 1: -100.0}, dict.fromkeys(range(MAX_LOGIT_BIAS), 0.0)],
                   [{-1: 0}, {2**31: 0}, {0: 100.1}, {0: -100.1}, {0: math.nan}, {"0": 1}, {0: "1"}, {0: None}, [1],
                    dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 0.0)]),
    "bad_words": ([None, [], ["x"], ["x"] * MAX_BAD_WORDS], [[""], "word", [5], ["x"] * (MAX_BAD_WORDS + 1), 5,
                                                              ["x" * 10_000]]),
    "allowed_token_ids": ([None, [0], (5, 6)], [[], [-1], [2**31], ["1"], [0.5], 5]),
    "logprobs": ([None, 0, MAX_LOGPROBS], [-1, MAX_LOGPROBS + 1, 1.0, True]),
    "prompt_logprobs": ([None, 0, MAX_LOGPROBS], [-1, MAX_LOGPROBS + 1, 1.0, "1"]),
    "detokenize": ([True, False], [1, None]),
    "structured_output": ([None, StructuredOutput(json="{}"), StructuredOutput(choice=("a",), start_after=(1,))],
                          [{"json": "{}"}, "json", 5, [1], {"xml": ""}]),
    "output_kind": (list(OutputKind), [7, "delta", None]),
    "pooling": ([None, PoolingParams(), PoolingParams(task="score", pair_start=3)], [5, "embed", [1]]),
    "extra_args": ([None, {}, {"key": [1]}], [[1], "x", 5]),
}  # fmt: skip
CASES_ACCEPTED = [(field, value) for field, (accepted, _) in BOUNDS.items() for value in accepted]
CASES_REFUSED = [(field, value) for field, (_, refused) in BOUNDS.items() for value in refused]


def short(value: Any) -> str:
    return repr(value)[:40]


class TestBounds:
    def test_every_field_has_a_bound(self):
        assert set(BOUNDS) == set(FIELDS)

    @pytest.mark.parametrize(("field", "value"), CASES_ACCEPTED, ids=short)
    def test_the_edge_is_accepted(self, field, value):
        assert getattr(SamplingParams(**{field: value}), field) == value

    @pytest.mark.parametrize(("field", "value"), CASES_REFUSED, ids=short)
    def test_what_lies_outside_is_refused_by_name(self, field, value):
        with pytest.raises(RequestError) as caught:
            SamplingParams(**{field: value})
        assert caught.value.param == field
        assert field in str(caught.value)

    @pytest.mark.parametrize(("field", "value"), CASES_REFUSED, ids=short)
    def test_what_lies_outside_is_refused_when_decoded(self, field, value):
        """The engine checks again: the same value in a frame is no SamplingParams."""
        try:
            frame = msgspec.msgpack.encode({field: value})
        except OverflowError:
            pytest.skip("the value cannot even be sent")
        try:
            decoded = msgspec.msgpack.decode(frame, type=SamplingParams)
        except msgspec.ValidationError:
            return
        changed_on_the_way = getattr(decoded, field) != value or type(
            getattr(decoded, field)
        ) is not type(value)
        assert changed_on_the_way  # 1.0 as 1, for example: the decoded value is valid

    @pytest.mark.parametrize(("field", "value"), CASES_ACCEPTED, ids=short)
    def test_what_is_accepted_survives_the_wire(self, field, value):
        frame = msgspec.msgpack.encode(SamplingParams(**{field: value}))
        again = getattr(msgspec.msgpack.decode(frame, type=SamplingParams), field)
        assert (list(again) if isinstance(value, tuple) else again) == (
            list(value) if isinstance(value, tuple) else value
        )

    def test_a_message_names_the_field_the_value_and_the_bound(self):
        with pytest.raises(
            RequestError, match=r"temperature=-0.5 .* at least 0.0 and at most 100.0"
        ):
            SamplingParams(temperature=-0.5)
        with pytest.raises(RequestError, match=r"top_p=0.0 .* above 0.0 and at most 1.0"):
            SamplingParams(top_p=0.0)
        with pytest.raises(RequestError, match=r"min_tokens=9 is above max_tokens=8"):
            SamplingParams(min_tokens=9, max_tokens=8)

    def test_an_unknown_field_is_a_type_error(self):
        with pytest.raises(TypeError, match="best_of"):
            SamplingParams(best_of=2)  # type: ignore[call-arg]

    def test_stop_strings_need_text(self):
        with pytest.raises(RequestError, match="detokenize=True"):
            SamplingParams(stop="x", detokenize=False)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3)
    ),
    max_leaves=5,
)


class TestAnything:
    """Whatever comes in, one of two things happens: valid parameters, or an error that names the request."""

    @settings(deadline=None)
    @given(st.sampled_from(FIELDS), ANYTHING)
    @pytest.mark.slow
    def test_building_raises_request_error_or_nothing(self, field, value):
        try:
            params = SamplingParams(**{field: value})
        except RequestError as error:
            refused = error
        else:
            assert_valid(params)
            return
        assert refused.param in FIELDS

    @settings(deadline=None)
    @given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=6))
    @pytest.mark.slow
    def test_decoding_raises_validation_error_or_nothing(self, values):
        try:
            frame = msgspec.msgpack.encode(values)
        except (OverflowError, TypeError, UnicodeEncodeError):
            return
        try:
            params = msgspec.msgpack.decode(frame, type=SamplingParams)
        except msgspec.DecodeError:
            return
        assert_valid(params)

    def test_a_refusal_is_an_error_of_ours_and_a_value_error(self):
        assert issubclass(RequestError, TenonryError)
        assert issubclass(RequestError, ValueError)


def assert_valid(params: SamplingParams) -> None:
    """The invariants that the rest of the engine relies on."""
    assert 1 <= params.n <= MAX_N
    assert 0 <= params.temperature <= 100
    assert 0 < params.top_p <= 1
    assert 0 <= params.min_p <= 1
    assert -1 <= params.top_k < 2**31
    assert params.max_tokens is None or params.min_tokens <= params.max_tokens
    for value in (
        params.n,
        params.top_k,
        params.min_tokens,
        params.max_tokens,
        params.seed,
        params.logprobs,
    ):
        assert value is None or type(value) is int
    assert all(isinstance(text, str) and text for text in params.stop_strings)
    for ids in (params.stop_token_ids, params.allowed_token_ids, params.logit_bias):
        assert all(type(token_id) is int and 0 <= token_id < 2**31 for token_id in ids or ())
    assert params.output_kind in set(OutputKind)


def test_stop_strings_are_a_tuple_in_every_form():
    assert [SamplingParams(stop=stop).stop_strings for stop in (None, "ab", ["a", "b"], ())] == [
        (), ("ab",), ("a", "b"), (),
    ]  # fmt: skip


def test_greedy_is_temperature_zero():
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams(temperature=0.1).is_greedy


def test_defaults_are_not_sent():
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(SamplingParams())) == {}


# field: (accepted at the bound, rejected just outside)
FORMS: dict[str, tuple[list[Any], list[Any]]] = {
    "json": (["{}", "x" * MAX_GRAMMAR_BYTES], ["", "x" * (MAX_GRAMMAR_BYTES + 1), {}, 5, b"{}"]),
    "json_object": ([True], [False, 1, "yes", None]),
    "regex": (["a", "é" * (MAX_GRAMMAR_BYTES // 2)], ["", "é" * (MAX_GRAMMAR_BYTES // 2 + 1), ["a"]]),
    "choice": ([("a",), ("a", "b"), ("x" * 5,) * 9], [(), ("",), ("a", ""), "ab", (1,), ("x" * 1024,) * 257]),
    "grammar": (['start: "a"'], ["", 5]),
}  # fmt: skip
FORMS_ACCEPTED = [(field, value) for field, (accepted, _) in FORMS.items() for value in accepted]
FORMS_REFUSED = [(field, value) for field, (_, refused) in FORMS.items() for value in refused]


class TestStructuredOutput:
    def test_every_form_has_a_bound(self):
        assert {*FORMS, "start_after"} == set(StructuredOutput.__struct_fields__)

    @pytest.mark.parametrize(("field", "value"), FORMS_ACCEPTED, ids=short)
    def test_the_edge_is_accepted_and_survives_the_wire(self, field, value):
        params = SamplingParams(structured_output=StructuredOutput(**{field: value}))
        assert getattr(params.structured_output, field) == value
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
        assert again == params

    @pytest.mark.parametrize(("field", "value"), FORMS_REFUSED, ids=short)
    def test_what_lies_outside_is_refused(self, field, value):
        with pytest.raises(RequestError, match="structured_output") as caught:
            StructuredOutput(**{field: value})
        assert (caught.value.param or "").startswith("structured_output")

    @pytest.mark.parametrize(("field", "value"), FORMS_REFUSED, ids=short)
    def test_what_lies_outside_is_refused_when_decoded(self, field, value):
        frame = msgspec.msgpack.encode({"structured_output": {field: value}})
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(frame, type=SamplingParams)

    @pytest.mark.parametrize("given", [{}, {"start_after": (1,)}])
    def test_no_form_at_all_is_refused(self, given):
        with pytest.raises(RequestError, match="has nothing; give one of json"):
            StructuredOutput(**given)

    def test_two_forms_are_refused_by_name(self):
        with pytest.raises(RequestError, match="has json and regex; give one of"):
            StructuredOutput(json="{}", regex="a")

    @pytest.mark.parametrize("ids", [(-1,), (2**31,), ("1",), (1,) * (MAX_START_AFTER + 1), 5])
    def test_start_after_holds_token_ids(self, ids):
        with pytest.raises(RequestError, match=r"structured_output\.start_after"):
            StructuredOutput(regex="a", start_after=ids)

    def test_equal_ones_hash_alike(self):
        one, other = (StructuredOutput(choice=("a", "b"), start_after=(1,)) for _ in range(2))
        assert len({one, other}) == 1
