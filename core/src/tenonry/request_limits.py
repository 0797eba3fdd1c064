"""What a request may ask of an engine, checked in the front end and again in the engine. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from tenonry.errors import RequestError
from tenonry.messages import MAX_TAGS, EngineCoreRequest

MAX_TAG_CHARS = 256
MAX_REQUEST_ID_CHARS = 256
MAX_NAME_CHARS = 256  # cache salt, adapter
MAX_STOP_IDS = 1024
MAX_BAD_WORD_TOKENS = 4096
MAX_TOKEN_ID = 2**31 - 1


class RequestLimits(msgspec.Struct, frozen=True):
    """Bounds learnt at start: longest sequence in tokens, and size of the vocabulary (0: unknown, ids are 31-bit)."""

    max_model_len: int
    vocab_size: int


def check_request(request: EngineCoreRequest, limits: RequestLimits) -> None:
    """Refuse what is out of bounds. Raises RequestError with the value, the bound and the field."""
    _check_prompt(request, limits.max_model_len)
    _check_ids(request, limits.vocab_size - 1 if limits.vocab_size else MAX_TOKEN_ID)
    _check_texts(request)
    if request.sampling_params.structured_output is not None:
        raise RequestError("structured output is not available in this engine", "structured_output")
    if request.pooling_params is not None:
        raise RequestError("pooling is not available in this engine", "pooling_params")


def _check_prompt(request: EngineCoreRequest, max_model_len: int) -> None:
    prompt = request.prompt_token_ids
    if prompt.ndim != 1 or prompt.dtype.kind not in "iu":
        raise RequestError(f"the prompt must be one row of token ids, not {prompt.dtype} {prompt.shape}", "prompt")
    if len(prompt) == 0:
        raise RequestError("the prompt is empty; give at least one token", "prompt")
    length = len(prompt) + len(request.output_token_ids)
    if length >= max_model_len:
        raise RequestError(
            f"the prompt has {length} tokens, but the context holds max_model_len={max_model_len} tokens and at "
            "least one must be left for the output; shorten the prompt",
            "prompt",
            "context_length_exceeded",
        )


def _check_ids(request: EngineCoreRequest, largest: int) -> None:
    """Every token id is one: numpy columns and embeddings would take anything else for something else."""
    params, words = request.sampling_params, request.bad_words
    prompt = request.prompt_token_ids
    if len(request.stop_token_ids) > MAX_STOP_IDS:
        raise RequestError(
            f"stop_token_ids has {len(request.stop_token_ids)} entries; at most {MAX_STOP_IDS} are allowed",
            "stop_token_ids",
        )
    if sum(map(len, words)) > MAX_BAD_WORD_TOKENS or not all(words):
        raise RequestError(
            f"bad_words has {len(words)} words of {sum(map(len, words))} tokens in all; at most {MAX_BAD_WORD_TOKENS} "
            "tokens are allowed, and at least one per word",
            "bad_words",
        )
    _check_range("prompt", (int(prompt.min()), int(prompt.max())), largest)
    _check_range("output_token_ids", request.output_token_ids, largest)
    _check_range("stop_token_ids", request.stop_token_ids, MAX_TOKEN_ID)  # a model's own may lie outside
    _check_range("bad_words", [token_id for word in words for token_id in word], largest)
    for field in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        _check_range(field, getattr(params, field) or (), largest)


def _check_range(field: str, token_ids: Collection[int], largest: int) -> None:
    if token_ids and (min(token_ids) < 0 or max(token_ids) > largest):
        bad = min(token_ids) if min(token_ids) < 0 else max(token_ids)
        raise RequestError(f"{field} holds token id {bad}; ids are 0 to {largest}", field)


def _check_texts(request: EngineCoreRequest) -> None:
    if len(request.request_id) > MAX_REQUEST_ID_CHARS:
        raise RequestError(f"request_id has more than {MAX_REQUEST_ID_CHARS} characters", "request_id")
    for field in ("cache_salt", "adapter"):
        if len(getattr(request, field) or "") > MAX_NAME_CHARS:
            raise RequestError(f"{field} has more than {MAX_NAME_CHARS} characters", field)
    if len(request.tags) > MAX_TAGS:
        raise RequestError(f"{len(request.tags)} tags; at most {MAX_TAGS} are allowed", "tags")
    for key, value in request.tags.items():
        if len(key) > MAX_TAG_CHARS or (isinstance(value, str) and len(value) > MAX_TAG_CHARS):
            raise RequestError(f"tag '{key[:32]}' is longer than {MAX_TAG_CHARS} characters", "tags")
