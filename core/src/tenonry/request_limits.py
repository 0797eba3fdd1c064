"""What a request may ask of an engine, checked in the front end and again in the engine. Pure."""

from __future__ import annotations

import msgspec
import numpy as np

from tenonry.errors import RequestError
from tenonry.messages import MAX_TAGS, EngineCoreRequest

MAX_TAG_CHARS = 256
MAX_REQUEST_ID_CHARS = 256


class RequestLimits(msgspec.Struct, frozen=True):
    """Bounds learnt at start: longest sequence in tokens, and size of the vocabulary (0: unknown, not checked)."""

    max_model_len: int
    vocab_size: int


def check_request(request: EngineCoreRequest, limits: RequestLimits) -> None:
    """Refuse what is out of bounds. Raises RequestError with the value, the bound and the field."""
    length = len(request.prompt_token_ids) + len(request.output_token_ids)
    if len(request.prompt_token_ids) == 0:
        raise RequestError("the prompt is empty; give at least one token", "prompt")
    if length >= limits.max_model_len:
        raise RequestError(
            f"the prompt has {length} tokens, but the context holds max_model_len={limits.max_model_len} tokens and at "
            "least one must be left for the output; shorten the prompt",
            "prompt",
            "context_length_exceeded",
        )
    if limits.vocab_size:
        _check_vocabulary(request, limits.vocab_size)
    if len(request.request_id) > MAX_REQUEST_ID_CHARS:
        raise RequestError(f"request_id has more than {MAX_REQUEST_ID_CHARS} characters", "request_id")
    if len(request.tags) > MAX_TAGS:
        raise RequestError(f"{len(request.tags)} tags; at most {MAX_TAGS} are allowed", "tags")
    for key, value in request.tags.items():
        if len(key) > MAX_TAG_CHARS or (isinstance(value, str) and len(value) > MAX_TAG_CHARS):
            raise RequestError(f"tag '{key[:32]}' is longer than {MAX_TAG_CHARS} characters", "tags")


def _check_vocabulary(request: EngineCoreRequest, vocab_size: int) -> None:
    low, high = int(np.min(request.prompt_token_ids)), int(np.max(request.prompt_token_ids))
    if low < 0 or high >= vocab_size:
        bad = low if low < 0 else high
        raise RequestError(f"the prompt holds token id {bad}; ids are 0 to {vocab_size - 1}", "prompt")
    params = request.sampling_params
    for field in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        for token_id in getattr(params, field) or ():
            if token_id >= vocab_size:
                raise RequestError(f"{field} holds {token_id}; token ids are 0 to {vocab_size - 1}", field)
