"""Sampling parameters of one request. Built by users and servers, checked at construction, and sent unchanged to the
worker.

A frozen msgspec struct: it is the public object and the wire form in one. Every field is bounded; a bad value is
rejected with the field, the value and the bound, here and again when the engine decodes it.
"""

from __future__ import annotations

import enum
import operator
import reprlib
from collections.abc import Collection, Sequence, Sized
from typing import Annotated, Any

import msgspec

from tenonry.errors import RequestError

MAX_N = 128
MAX_LOGPROBS = 64
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_CHARS = 1024  # also of a bad word
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 256
MAX_ALLOWED_TOKEN_IDS = 262_144
MAX_GRAMMAR_BYTES = 262_144  # of a structured output's texts together, in UTF-8
MAX_START_AFTER = 64
MAX_TOKENS = 2**31 - 1
MAX_TOKEN_ID = 2**31 - 1


def check_count(field: str, values: Sized, most: int) -> None:
    """Raise RequestError for more than `most` values."""
    if len(values) > most:
        raise RequestError(f"{field} has {len(values)} entries; at most {most} are allowed", field)


def check_token_ids(field: str, token_ids: Collection[int], largest: int = MAX_TOKEN_ID) -> None:
    """Raise RequestError for an id that is negative or above `largest`."""
    for token_id in (min(token_ids), max(token_ids)) if token_ids else ():
        if not 0 <= token_id <= largest:
            raise RequestError(f"{field} holds token id {token_id}; ids are 0 to {largest}", field)


def check_type(field: str, value: Any, kind: Any) -> None:
    """Raise RequestError for a value that a decoder of `kind` would reject."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise RequestError(
            f"{field}={reprlib.repr(value)} has the wrong type: {error}", field
        ) from None


def needs(capability: str) -> msgspec.Meta:
    """Return the annotation of a request's field: workers without this capability reject all values but None."""
    return msgspec.Meta(extra={"capability": capability})


class OutputKind(enum.IntEnum):
    """Content of each output of a stream: everything so far, only new output, or nothing until the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL = 2


class StructuredOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Constraint on the output. Exactly one of the first five; vLLM's names.

    `json`: a JSON schema, as text. `json_object`: any JSON object. `regex`: the whole output matches. `choice`: the
    output is one of these texts. `grammar`: in Lark's or in GBNF's notation. `start_after`: the constraint begins after
    these token ids in the output, for models that reason first; by default at the start. Raises RequestError when a
    value is out of bounds.
    """

    json: str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    start_after: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        given = []
        texts: tuple[str, ...] = ()
        for info in msgspec.structs.fields(StructuredOutput):
            value = getattr(self, info.name)
            check_type(f"structured_output.{info.name}", value, info.type)
            if info.name == "start_after":
                continue
            if value is not None and value is not False:
                given.append(info.name)
                texts = value if isinstance(value, tuple) else (str(value),)
        if len(given) != 1:
            raise RequestError(
                f"structured_output has {' and '.join(given) or 'nothing'}; give one of json, json_object, regex, "
                "choice and grammar",
                "structured_output",
            )
        num_bytes = sum(len(text.encode(errors="replace")) for text in texts)
        if not (all(texts) and 0 < num_bytes <= MAX_GRAMMAR_BYTES):
            raise RequestError(
                f"structured_output.{given[0]} has {num_bytes} bytes; each text must have one at least, and all "
                f"together {MAX_GRAMMAR_BYTES} at most",
                "structured_output",
            )
        check_count("structured_output.start_after", self.start_after, MAX_START_AFTER)
        check_token_ids("structured_output.start_after", self.start_after)


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Pooling request: a vector of the prompt, or scores of a classification head, instead of tokens.

    `task`: "embed", "classify" or "score", as supported by the model. `normalize`: scale vectors to length 1, or apply
    the head's activation to scores; by default as in the model's files. `dimensions`: number of leading values to keep,
    cut before normalisation. `pair_start`: first position of the second text of a pair; 0 for one text. Values are
    checked with the request.
    """

    task: str = "embed"
    normalize: bool | None = None
    dimensions: int | None = None
    pair_start: int = 0


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters of one request; vLLM's names and meanings where the field exists there.

    `temperature` 0 is greedy; `top_k` 0 or -1 keeps the whole vocabulary. Penalties follow OpenAI (presence,
    frequency: over output tokens) and CTRL, arXiv:1909.05858 (repetition: over prompt and output tokens).
    Raises RequestError when a value is out of bounds.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: Sequence[str] | str | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    bad_words: Sequence[str] | None = None
    allowed_token_ids: Sequence[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    structured_output: Annotated[StructuredOutput | None, needs("grammar")] = None
    pooling: Annotated[PoolingParams | None, needs("pooling")] = None
    output_kind: OutputKind = OutputKind.CUMULATIVE
    extra_args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for info, value in zip(_FIELDS, _VALUES(self), strict=True):
            if value is not info.default:  # which is in bounds
                _check_field(info, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}", "min_tokens"
            )
        if self.stop and not self.detokenize:
            raise RequestError(
                "stop strings need detokenize=True; use stop_token_ids without text", "stop"
            )
        if isinstance(self.structured_output, dict):
            raise RequestError(
                "structured_output is a dict; give StructuredOutput(json=...) or another form of it",
                "structured_output",
            )
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError(
                "allowed_token_ids is empty; leave it out to allow every token", "allowed_token_ids"
            )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Return `stop` as a tuple, from any of its forms."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def generates(self) -> bool:
        """True if the output is tokens. Otherwise the single token that ends the request is never computed from."""
        return self.pooling is None

    def max_total_tokens(self, num_prompt_tokens: int, max_model_len: int) -> int:
        """Maximum length, prompt included, of a request with this prompt."""
        if self.max_tokens is None:
            return max_model_len
        longest = max_model_len if self.generates else max_model_len + 1
        return min(longest, num_prompt_tokens + self.max_tokens)


def _check_field(info: msgspec.structs.FieldInfo, value: Any) -> None:
    """Check type, bounds and items of a field."""
    field = info.name
    check_type(field, value, info.type)
    if value is None:
        return
    if field in _BOUNDS:
        low, high = _BOUNDS[field]
        is_open = field == "top_p"  # 0 would keep no token at all
        if not low <= value <= high or (is_open and value == low):  # NaN is nowhere
            bounds = f"{'above' if is_open else 'at least'} {low} and at most {high}"
            raise RequestError(f"{field}={value} is out of bounds: it must be {bounds}", field)
    elif field in _LENGTHS:
        items = (value,) if isinstance(value, str) else value
        check_count(field, items, _LENGTHS[field])
        _check_items(field, items)


def _check_items(field: str, items: Any) -> None:
    if field in {"stop", "bad_words"}:
        for text in items:
            if not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
                raise RequestError(
                    f"{field} holds a text of {len(text)} characters; it must have 1 to {MAX_STOP_STRING_CHARS}",
                    field,
                )
    else:
        check_token_ids(field, items)
    if field == "logit_bias":
        for token_id, bias in items.items():
            if not -100 <= bias <= 100:
                raise RequestError(f"logit_bias[{token_id}]={bias} is outside -100..100", field)


_BOUNDS: dict[str, tuple[float, float]] = {
    "n": (1, MAX_N),
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "seed": (-(2**63), 2**63 - 1),
    "max_tokens": (1, MAX_TOKENS),
    "min_tokens": (0, MAX_TOKENS),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}
_LENGTHS = {
    "stop": MAX_STOP_STRINGS,
    "stop_token_ids": MAX_STOP_TOKEN_IDS,
    "logit_bias": MAX_LOGIT_BIAS,
    "bad_words": MAX_BAD_WORDS,
    "allowed_token_ids": MAX_ALLOWED_TOKEN_IDS,
}
_FIELDS = msgspec.structs.fields(SamplingParams)
_VALUES = operator.attrgetter(*(info.name for info in _FIELDS))
