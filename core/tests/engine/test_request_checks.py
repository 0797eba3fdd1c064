"""Checks of a request's parameters: in the front end, and in the engine again (AF-6, faults 18 and 23)."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tenonry.config import EngineConfig
from tenonry.engine.request_checks import (
    MAX_BAD_WORD_TOKENS,
    MAX_STOP_IDS,
    MAX_TAG_CHARS,
    MAX_TAGS,
    check_request,
)
from tenonry.errors import RequestError
from tenonry.interfaces.request_check import RequestLimits
from tenonry.messages import EngineCoreRequest, make_handle
from tenonry.outputs import FinishReason
from tenonry.request import Request, RequestStatus
from tenonry.sampling_params import PoolingParams, SamplingParams, StructuredOutput
from tenonry.step import MAX_ARRAY_BYTES, MAX_NAME_CHARS, Adapter, Media

MEDIA = Media(np.array([[0, 1]]), np.zeros((1, 32), np.uint8), [{}])
CONFIG = EngineConfig(model="m")
LIMITS = RequestLimits(max_model_len=10, vocab_size=100, config=CONFIG)


def request(prompt: Any = (1, 2, 3), **fields: Any) -> EngineCoreRequest:
    params = fields.pop("sampling_params", SamplingParams())
    ids = prompt if isinstance(prompt, np.ndarray) else np.array(prompt, np.int32)
    return EngineCoreRequest(
        handle=1, request_id="r", prompt_token_ids=ids, sampling_params=params, **fields
    )


def sampling(**fields: Any) -> dict[str, Any]:
    return {"sampling_params": SamplingParams(**fields)}


class TestAccepted:
    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"prompt": [0, 99]},
            {"prompt": [5] * 9},
            {"prompt": np.array([1, 2], np.uint32)},
            {"prompt": [5] * 4, "output_token_ids": [0, 99, 5, 5, 5]},
            {"stop_token_ids": tuple(range(MAX_STOP_IDS))},
            {"stop_token_ids": (100, 2**31 - 1)},  # a model's end id may lie outside its vocabulary
            {"bad_words": ((1, 2), (99,))},
            {
                "cache_salt": "x" * MAX_NAME_CHARS,
                "adapter": Adapter("x" * MAX_NAME_CHARS, "x" * MAX_NAME_CHARS),
            },
            {"features": {str(i): np.zeros((2, 0), np.bool_) for i in range(100)}},
            {"features": {"image": np.array(1.5, np.float32)}},
            {
                "tags": {
                    f"{i}" * MAX_TAG_CHARS if i < 10 else f"{i}": "v" * MAX_TAG_CHARS
                    for i in range(MAX_TAGS)
                }
            },
            {"prompt": [5] * 7, **sampling(min_tokens=3, max_tokens=None)},
            {
                "prompt": [5] * 7,
                "output_token_ids": [5] * 2,
                **sampling(min_tokens=3, max_tokens=None),
            },
            sampling(stop_token_ids=[99], allowed_token_ids=[0, 99], logit_bias={99: 1.0}),
        ],
        ids=",".join,
    )
    def test_the_edge(self, fields):
        check_request(request(**fields), LIMITS)

    def test_without_a_known_vocabulary_any_31_bit_id(self):
        check_request(request([0, 2**31 - 1]), RequestLimits(10, 0, CONFIG))


class TestRefused:
    @pytest.mark.parametrize(
        ("fields", "param", "text"),
        [
            ({"prompt": []}, "prompt", "the prompt is empty"),
            ({"prompt": [5] * 10}, "prompt", "10 tokens, but the context holds max_model_len=10"),
            ({"prompt": [5] * 5, "output_token_ids": [5] * 5}, "prompt", "10 tokens"),
            (
                {"prompt": [5] * 7, **sampling(min_tokens=4, max_tokens=None)},
                "min_tokens",
                "min_tokens=4 is above 3, which a prompt of 7 tokens leaves of max_model_len=10",
            ),
            ({"prompt": [1, 100]}, "prompt", "token id 100; ids are 0 to 99"),
            ({"prompt": [1, -1]}, "prompt", "token id -1"),
            ({"prompt": np.array([2**40])}, "prompt", f"token id {2**40}"),
            ({"prompt": np.array([1.5])}, "prompt", "one row of token ids, not float64"),
            ({"prompt": np.array([np.nan])}, "prompt", "not float64"),
            ({"prompt": np.array([[1, 2]])}, "prompt", r"one row of token ids, not int64 \(1, 2\)"),
            ({"prompt": np.array(1)}, "prompt", r"int64 \(\)"),
            ({"prompt": np.array([True])}, "prompt", "not bool"),
            ({"output_token_ids": [100]}, "output_token_ids", "token id 100"),
            ({"output_token_ids": [2**70]}, "output_token_ids", "token id"),
            ({"stop_token_ids": (2**31,)}, "stop_token_ids", f"token id {2**31}"),
            ({"stop_token_ids": (-1,)}, "stop_token_ids", "token id -1"),
            (
                {"stop_token_ids": (1,) * (MAX_STOP_IDS + 1)},
                "stop_token_ids",
                f"at most {MAX_STOP_IDS}",
            ),
            ({"bad_words": ((1, 100),)}, "bad_words", "token id 100"),
            ({"bad_words": ((1,), ())}, "bad_words", "at least one per word"),
            (
                {"bad_words": ((1,) * (MAX_BAD_WORD_TOKENS + 1),)},
                "bad_words",
                f"at most {MAX_BAD_WORD_TOKENS}",
            ),
            ({"request_id": None}, "request_id", f"more than {MAX_NAME_CHARS}"),
            ({"cache_salt": "x" * 257}, "cache_salt", "more than 256"),
            (
                {"features": {"a": [1]}},
                "features",
                r"features: 'a' must be a numpy array .*, not \[1\]",
            ),
            (
                {"features": {"a": np.array(["x"])}},
                "features",
                r"features: 'a' must be .*, not array\(\['x'\]",
            ),
            (
                {"features": {"a": np.array([None])}},
                "features",
                r"features: 'a' must be .*, not array\(\[None\]",
            ),
            (
                {"features": {"a": np.broadcast_to(np.int8(0), MAX_ARRAY_BYTES), "b": np.ones(1)}},
                "features",
                f"{MAX_ARRAY_BYTES + 8} bytes; at most {MAX_ARRAY_BYTES}",
            ),
            ({"tags": dict.fromkeys(map(str, range(17)), 1.0)}, "tags", "17 tags; at most 16"),
            ({"tags": {"k": "v" * 257}}, "tags", "tag 'k' is longer than 256"),
            ({"tags": {"k" * 257: 1.0}}, "tags", "longer than 256"),
            (sampling(stop_token_ids=[100]), "stop_token_ids", "token id 100; ids are 0 to 99"),
            (sampling(allowed_token_ids=[100]), "allowed_token_ids", "token id 100"),
            (sampling(logit_bias={100: 1.0}), "logit_bias", "token id 100"),
        ],
    )
    def test_by_field_value_and_bound(self, fields, param, text):
        made = request(**{key: value for key, value in fields.items() if key != "request_id"})
        if "request_id" in fields:
            made = msgspec.structs.replace(made, request_id="x" * (MAX_NAME_CHARS + 1))
        with pytest.raises(RequestError, match=text) as caught:
            check_request(made, LIMITS)
        assert caught.value.param == param

    @pytest.mark.parametrize(
        ("fields", "param", "capability"),
        [
            (
                sampling(structured_output=StructuredOutput(json="{}")),
                "structured_output",
                "grammar",
            ),
            ({"adapter": Adapter("style", "1f")}, "adapter", "lora"),
            ({"features": {"image": np.ones(2)}}, "features", "features"),
            (sampling(pooling=PoolingParams()), "pooling", "pooling"),
            ({"media": MEDIA}, "media", "media"),
        ],
    )
    def test_what_the_worker_cannot_do_is_refused_where_that_is_known(
        self, fields, param, capability
    ):
        made = request(**fields)
        check_request(made, LIMITS)
        able = RequestLimits(10, 100, CONFIG, "able", frozenset({capability}))
        check_request(made, able)
        unable = RequestLimits(10, 100, CONFIG, "unable", frozenset({"sleep"}))
        text = f"{param}=.* worker 'unable' does not support '{capability}'"
        with pytest.raises(RequestError, match=text) as caught:
            check_request(made, unable)
        assert caught.value.param == param

    @pytest.mark.parametrize(("name", "digest"), [("x" * 257, "1f"), ("x", "1" * 257)])
    def test_an_adapter_with_a_long_name_is_refused_where_it_is_made_or_decoded(self, name, digest):
        with pytest.raises(RequestError, match="adapter has more than 256") as caught:
            Adapter(name, digest)
        assert caught.value.param == "adapter"
        with pytest.raises(msgspec.ValidationError, match="more than 256"):
            msgspec.convert([name, digest], Adapter)

    def test_a_prompt_too_long_has_a_code_of_its_own(self):
        with pytest.raises(RequestError) as caught:
            check_request(request([5] * 10), LIMITS)
        assert caught.value.code == "context_length_exceeded"

    def test_installed_checks_run_and_know_the_limits(self):
        def no_salt(source: EngineCoreRequest, limits: RequestLimits) -> None:
            if source.cache_salt:
                raise RequestError(f"no salt below {limits.vocab_size}", "cache_salt")

        limits = RequestLimits(10, 100, CONFIG, checks=(no_salt,))
        check_request(request(), limits)
        with pytest.raises(RequestError, match="no salt below 100"):
            check_request(request(cache_salt="x"), limits)

    def test_a_check_that_fails_itself_is_named_and_ends_one_request(self):
        def broken(source: EngineCoreRequest, limits: RequestLimits) -> None:
            raise KeyError(source.request_id)

        limits = RequestLimits(10, 100, CONFIG, checks=(broken,))
        text = rf"the request check {__name__}:broken failed: KeyError\('r'\)"
        with pytest.raises(RequestError, match=text) as caught:
            check_request(request(), limits)
        assert caught.value.code == "plugin_failed"


class TestRequest:
    """A request as the scheduler sees it."""

    def test_its_facts(self):
        source = request(
            [1, 2, 3],
            output_token_ids=[7, 8],
            priority=3,
            tags={"tenant": "a"},
            **sampling(max_tokens=4),
        )
        source = msgspec.structs.replace(source, handle=make_handle(5, 9))
        made = Request(source, arrival=2, arrival_time=1.5, max_model_len=100)
        assert made.handle == source.handle
        assert made.request_id == "r"
        assert made.priority == 3
        assert made.token_ids.tolist() == [1, 2, 3, 7, 8]
        assert made.token_ids.dtype == np.int32
        assert made.num_prompt_tokens == 3
        assert made.num_output_tokens == 2
        assert made.num_tokens == 5
        assert made.arrival == 2
        assert made.arrival_time == 1.5
        assert made.row == -1
        assert made.num_cached_tokens == -1
        assert made.tags == {"tenant": "a"}
        assert made.status is RequestStatus.WAITING
        assert not made.is_finished
        assert "WAITING" in repr(made)

    @pytest.mark.parametrize(("max_tokens", "longest"), [(4, 7), (None, 50), (1000, 50)])
    def test_its_limit_is_the_smaller_of_its_own_and_the_models(self, max_tokens, longest):
        assert (
            Request(request(**sampling(max_tokens=max_tokens)), 0, 0.0, 50).max_total_tokens
            == longest
        )

    def test_it_ends_once(self):
        made = Request(request(), 0, 0.0, 50)
        made.status = RequestStatus.FINISHED
        assert made.is_finished
        assert [str(reason) for reason in FinishReason] == ["stop", "length", "abort", "error"]

    def test_delivered_tokens_are_output(self):
        """A stream that moves here includes its earlier output: the limit is on prompt and all output together."""
        made = Request(
            request([1, 2], output_token_ids=[3, 4], **sampling(max_tokens=3)), 0, 0.0, 50
        )
        assert made.max_total_tokens - made.num_tokens == 1


def test_every_field_of_a_request_is_bounded_or_reserved():
    """A new field needs a bound, or a reason to have none: opaque to the kernel, or an integer of the wire."""
    bounded = {
        "request_id", "prompt_token_ids", "sampling_params", "output_token_ids", "stop_token_ids", "bad_words",
        "cache_salt", "tags", "adapter", "features", "media",
    }  # fmt: skip
    opaque = {"kv_transfer_params", "trace_headers"}
    numbers = {"handle", "priority", "arrival_time", "data_parallel_rank"}
    assert {
        field.name for field in msgspec.structs.fields(EngineCoreRequest)
    } == bounded | opaque | numbers
