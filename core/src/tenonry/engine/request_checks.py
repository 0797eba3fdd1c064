"""Limits of requests, checked in the front end and again in the engine. Pure."""

from __future__ import annotations

import msgspec

from tenonry.errors import ErrorCode, RequestError
from tenonry.interfaces.request_check import RequestLimits
from tenonry.messages import EngineCoreRequest
from tenonry.sampling_params import MAX_TOKEN_ID, SamplingParams, check_count, check_token_ids
from tenonry.step import MAX_NAME_CHARS, check_arrays

MAX_TAGS = 16
MAX_TAG_CHARS = 256
MAX_STOP_IDS = 1024
MAX_BAD_WORD_TOKENS = 4096
NEEDED = {
    info.name: meta.extra["capability"]
    for kind in (EngineCoreRequest, SamplingParams)
    for info in msgspec.structs.fields(kind)
    for meta in getattr(info.type, "__metadata__", ())
}  # field → capability required of the worker


def check_request(request: EngineCoreRequest, limits: RequestLimits) -> None:
    """Reject values out of bounds. Raises RequestError with the value, the bound and the field."""
    _check_prompt(request)
    for check in limits.checks:
        try:
            check(request, limits)
        except RequestError:
            raise
        except Exception as error:
            raise RequestError(
                f"the request check {check.__module__}:{check.__name__} failed: {error!r}",
                code="plugin_failed",
            ) from error
    _check_length(request, limits.max_model_len)
    _check_ids(request, limits.vocab_size - 1 if limits.vocab_size else MAX_TOKEN_ID)
    _check_texts(request)
    if request.features:
        check_arrays("features", request.features)
    if limits.capabilities is not None:
        _check_capabilities(request, limits.worker, limits.capabilities)


def _check_prompt(request: EngineCoreRequest) -> None:
    prompt = request.prompt_token_ids
    if prompt.ndim != 1 or prompt.dtype.kind not in "iu":
        raise RequestError(
            f"the prompt must be one row of token ids, not {prompt.dtype} {prompt.shape}", "prompt"
        )
    if len(prompt) == 0:
        raise RequestError("the prompt is empty; give at least one token", "prompt")


def _check_length(request: EngineCoreRequest, max_model_len: int) -> None:
    """Check that a prompt leaves room for `min_tokens`, and for one output token if any is generated."""
    params = request.sampling_params
    room = max_model_len - len(request.prompt_token_ids)
    least = int(params.generates)
    if len(request.output_token_ids) > room - least:
        raise RequestError(
            f"the prompt has {max_model_len - room + len(request.output_token_ids)} tokens, but the context holds "
            f"max_model_len={max_model_len} tokens and at least {least} must be left for the "
            "output; shorten the prompt",
            "prompt",
            "context_length_exceeded",
        )
    if params.min_tokens > room:
        raise RequestError(
            f"min_tokens={params.min_tokens} is above {room}, which a prompt of {max_model_len - room} tokens leaves "
            f"of max_model_len={max_model_len}; lower it, or shorten the prompt",
            "min_tokens",
        )


def _check_ids(request: EngineCoreRequest, largest: int) -> None:
    """Check that every token id is in range: numpy columns and embeddings would map others to wrong tokens."""
    params = request.sampling_params
    words = request.bad_words
    prompt = request.prompt_token_ids
    check_count("stop_token_ids", request.stop_token_ids, MAX_STOP_IDS)
    if sum(map(len, words)) > MAX_BAD_WORD_TOKENS or not all(words):
        raise RequestError(
            f"bad_words has {len(words)} words of {sum(map(len, words))} tokens in all; at most {MAX_BAD_WORD_TOKENS} "
            "tokens are allowed, and at least one per word",
            "bad_words",
        )
    check_token_ids("prompt", (int(prompt.min()), int(prompt.max())), largest)
    check_token_ids("output_token_ids", request.output_token_ids, largest)
    # A model's own end ids may lie outside its vocabulary.
    check_token_ids("stop_token_ids", request.stop_token_ids)
    check_token_ids("bad_words", [token_id for word in words for token_id in word], largest)
    for field in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        check_token_ids(field, getattr(params, field) or (), largest)


def _check_texts(request: EngineCoreRequest) -> None:
    for field in ("request_id", "cache_salt"):
        if len(getattr(request, field) or "") > MAX_NAME_CHARS:
            raise RequestError(f"{field} has more than {MAX_NAME_CHARS} characters", field)
    if len(request.tags) > MAX_TAGS:
        raise RequestError(f"{len(request.tags)} tags; at most {MAX_TAGS} are allowed", "tags")
    for key, value in request.tags.items():
        if max(len(key), len(str(value))) > MAX_TAG_CHARS:
            raise RequestError(
                f"tag '{key[:32]}' is longer than {MAX_TAG_CHARS} characters", "tags"
            )


def _check_capabilities(
    request: EngineCoreRequest, worker: str, capabilities: frozenset[str]
) -> None:
    for field, capability in NEEDED.items():
        owner = request if hasattr(request, field) else request.sampling_params
        value = getattr(owner, field)
        if value is not None and capability not in capabilities:
            raise RequestError(
                f"{field}={value!r:.64}: worker '{worker}' does not support '{capability}'",
                field,
                ErrorCode.UNSUPPORTED,
            )
