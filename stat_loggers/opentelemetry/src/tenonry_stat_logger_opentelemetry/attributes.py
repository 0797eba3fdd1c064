"""Attributes of a request's span: names of the OpenTelemetry conventions for generative AI, and vLLM's names of times
and counts. Needs no OpenTelemetry. Observer thread.
"""

from __future__ import annotations

from tenonry.stats import FinishedRequestStats

OPERATION = "text_completion"  # what an engine does, whatever the route made the prompt from
PROVIDER = "tenonry"
SOME_ERROR = "_OTHER"  # the convention's word for an error of no known class

Attribute = str | int | float | list[str]


def request_attributes(
    request: FinishedRequestStats, model: str, engine_index: int, *, vllm_names: bool
) -> dict[str, Attribute]:
    """The attributes of a request's span. Times in seconds; those of steps that never happened are missing.

    https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans has all names but `gen_ai.latency.…`, which are
    vLLM's, and `tenonry.…`.
    """
    request_id = _text(request.request_id)
    found: dict[str, Attribute | None] = {
        "gen_ai.operation.name": OPERATION,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": _text(model),
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.choice.count": request.n if request.n != 1 else None,
        "gen_ai.response.id": request_id,
        "gen_ai.response.finish_reasons": [request.finish_reason],
        "gen_ai.usage.input_tokens": request.num_prompt_tokens,
        "gen_ai.usage.output_tokens": request.num_generation_tokens,
        "gen_ai.usage.cache_read.input_tokens": request.num_cached_tokens,
        "error.type": SOME_ERROR if request.finish_reason == "error" else None,
        "tenonry.engine_index": engine_index,
        "tenonry.num_preemptions": request.num_preemptions,
    }
    if vllm_names:
        found |= {
            "gen_ai.request.id": request_id,
            "gen_ai.request.n": request.n,
            "gen_ai.response.model": _text(model),
            "gen_ai.usage.prompt_tokens": request.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": request.num_generation_tokens,
        }
    found |= _latencies(request)
    found |= {
        f"tenonry.tag.{_text(name)}": _text(value) if isinstance(value, str) else value
        for name, value in request.tags.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def _latencies(request: FinishedRequestStats) -> dict[str, Attribute | None]:
    found: dict[str, Attribute | None] = {
        "gen_ai.latency.e2e": request.e2e_latency_s,
        "gen_ai.latency.time_in_queue": request.queued_s,
        "gen_ai.latency.time_to_first_token": request.ttft_s,
    }
    # A request that never got a token spent no measured time in the model.
    if request.ttft_s is not None:
        found |= {
            "gen_ai.latency.time_in_model_prefill": request.prefill_s,
            "gen_ai.latency.time_in_model_decode": request.decode_s,
            "gen_ai.latency.time_in_model_inference": request.prefill_s + request.decode_s,
        }
    return found


def _text(text: str) -> str:
    """Text that can be sent: half a surrogate pair would spoil the batch in which it travels."""
    return text.encode("utf-8", "replace").decode()
