"""Attributes of a span, one by one (AF-22)."""

from __future__ import annotations

import pytest

from tenonry_stat_logger_opentelemetry.attributes import request_attributes

TIMES = {"ttft_s": 1.0, "queued_s": 0.25, "prefill_s": 0.75, "decode_s": 1.5, "e2e_latency_s": 3.0}


@pytest.fixture(scope="module")
def attributes(request_of):
    def make(*, model="demo", engine=0, vllm_names=True, **fields):
        return request_attributes(request_of(**fields), model, engine, vllm_names=vllm_names)

    return make


@pytest.mark.parametrize(
    ("name", "value", "fields"),
    [
        ("gen_ai.operation.name", "text_completion", {}),
        ("gen_ai.provider.name", "tenonry", {}),
        ("gen_ai.request.model", "demo", {}),
        ("gen_ai.request.max_tokens", 100, {"max_tokens": 100}),
        ("gen_ai.request.choice.count", 3, {"n": 3}),
        ("gen_ai.response.id", "cmpl-1", {"request_id": "cmpl-1"}),
        ("gen_ai.response.finish_reasons", ["length"], {"finish_reason": "length"}),
        ("gen_ai.usage.input_tokens", 41, {"num_prompt_tokens": 41}),
        ("gen_ai.usage.output_tokens", 7, {"num_generation_tokens": 7}),
        ("gen_ai.usage.cache_read.input_tokens", 32, {"num_cached_tokens": 32}),
        ("error.type", "_OTHER", {"finish_reason": "error"}),
        ("gen_ai.latency.time_to_first_token", 1.0, TIMES),
        ("gen_ai.latency.time_in_queue", 0.25, TIMES),
        ("gen_ai.latency.e2e", 3.0, TIMES),
        ("gen_ai.latency.time_in_model_prefill", 0.75, TIMES),
        ("gen_ai.latency.time_in_model_decode", 1.5, TIMES),
        ("gen_ai.latency.time_in_model_inference", 2.25, TIMES),
        ("gen_ai.request.id", "cmpl-1", {"request_id": "cmpl-1"}),
        ("gen_ai.request.n", 3, {"n": 3}),
        ("gen_ai.response.model", "demo", {}),
        ("gen_ai.usage.prompt_tokens", 41, {"num_prompt_tokens": 41}),
        ("gen_ai.usage.completion_tokens", 7, {"num_generation_tokens": 7}),
        ("tenonry.engine_index", 2, {"engine": 2}),
        ("tenonry.num_preemptions", 4, {"num_preemptions": 4}),
        ("tenonry.tag.tenant", "acme", {"tags": {"tenant": "acme"}}),
        ("tenonry.tag.weight", 1.5, {"tags": {"weight": 1.5}}),
    ],
)
def test_each(name, value, fields, attributes):
    assert attributes(**fields)[name] == value


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("gen_ai.request.max_tokens", {"max_tokens": None}),
        ("gen_ai.request.choice.count", {"n": 1}),
        ("error.type", {"finish_reason": "abort"}),
        *(
            (f"gen_ai.latency.{step}", {"ttft_s": None})
            for step in (
                "time_to_first_token", "time_in_model_prefill", "time_in_model_decode", "time_in_model_inference",
            )
        ),
        *(
            (f"gen_ai.{name}", {"vllm_names": False})
            for name in (
                "request.id", "request.n", "response.model", "usage.prompt_tokens", "usage.completion_tokens",
            )
        ),
    ],
)  # fmt: skip
def test_what_there_is_not_is_missing(name, fields, attributes):
    assert name not in attributes(**fields)


def test_text_that_cannot_be_sent_is_replaced(attributes):
    found = attributes(request_id="a\ud800", tags={"b\ud800": "c\ud800"})
    assert found["gen_ai.response.id"] == "a?"
    assert found["tenonry.tag.b?"] == "c?"
