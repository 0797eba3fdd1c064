"""Shared fields of completions and chat completions, and their conversion to SamplingParams. Front end.

Types and sizes are checked here, to avoid the traversal of large values; the exact bounds of each value are
SamplingParams' own and are checked when it is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from tenonry import sampling_params as limits
from tenonry.errors import RequestError
from tenonry.sampling_params import OutputKind, SamplingParams
from tenonry_openai_server.protocol.structured import StructuredBody
from tenonry_openai_server.protocol.tools import MAX_DEPTH, depth

MAX_INT = 2**63 - 1
MAX_SALT_CHARS = 256
MAX_EXTRA_ARGS = 64
MAX_EXTRA_NAME_CHARS = 64
DEFAULTABLE = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
PASSED_ON = (
    *DEFAULTABLE, "n", "seed", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output",
    "skip_special_tokens", "bad_words", "allowed_token_ids", "extra_args",
)  # fmt: skip


def at_most(count: int) -> BeforeValidator:
    """Reject a list or mapping by its length before its entries are checked."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > count:
            raise ValueError(f"has {len(value)} entries; at most {count} are allowed")
        return value

    return BeforeValidator(check)


def _names(value: Any) -> dict[str, Any]:
    """A mapping of few names. Raises ValueError for other values."""
    if not isinstance(value, dict) or len(value) > MAX_EXTRA_ARGS:
        raise ValueError(f"must be a mapping of at most {MAX_EXTRA_ARGS} names")
    if any(len(name) > MAX_EXTRA_NAME_CHARS for name in value):
        raise ValueError(f"holds a name of more than {MAX_EXTRA_NAME_CHARS} characters")
    return value


def _scalars(value: Any) -> dict[str, Any] | None:
    """A flat mapping: nothing that an engine would have to walk through. Names with null are as good as absent."""
    if value is None:
        return None
    found = {name: entry for name, entry in _names(value).items() if entry is not None}
    for name, entry in found.items():
        if not isinstance(entry, str | int | float) or len(str(entry)) > 1024:
            raise ValueError(
                f"{name}: must be a text of at most 1024 characters, a number or a flag"
            )
    return found


def _template_values(value: Any) -> dict[str, Any] | None:
    """Variables for a chat template with values of any kind; a null one is passed as none."""
    if value is None:
        return None
    if depth(_names(value), 0) > MAX_DEPTH:
        raise ValueError(f"is nested more than {MAX_DEPTH} levels deep")
    return dict(value)


SCALARS_SCHEMA: dict[str, Any] = {
    "type": ["object", "null"],
    "maxProperties": MAX_EXTRA_ARGS,
    "propertyNames": {"maxLength": MAX_EXTRA_NAME_CHARS},
    "additionalProperties": {"type": ["string", "number", "boolean", "null"], "maxLength": 1024},
}
TEMPLATE_SCHEMA: dict[str, Any] = {
    **SCALARS_SCHEMA,
    "additionalProperties": {"description": "Any value, as the template reads it."},
}
Number = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Scalars = Annotated[dict[str, Any] | None, PlainValidator(_scalars), WithJsonSchema(SCALARS_SCHEMA)]
TemplateValues = Annotated[
    dict[str, Any] | None, PlainValidator(_template_values), WithJsonSchema(TEMPLATE_SCHEMA)
]
Text = Annotated[str, Field(min_length=1, max_length=limits.MAX_STOP_STRING_CHARS)]
Texts = Annotated[list[Text], Field(max_length=limits.MAX_STOP_STRINGS, fail_fast=True)]


class StreamOptions(BaseModel):
    """Contents of a stream besides text."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class SamplingBody(StructuredBody, ABC):
    """Shared fields. An absent or null field has the model's default, else OpenAI's."""

    n: int | None = Field(None, ge=1, le=limits.MAX_N)
    temperature: Number | None = Field(None, ge=0, le=100)
    top_p: Number | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: Number | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-MAX_INT - 1, le=MAX_INT)
    min_tokens: int | None = Field(None, ge=0, le=limits.MAX_TOKENS)
    stop: Text | Texts | None = None
    stop_token_ids: Annotated[TokenIds | None, at_most(limits.MAX_STOP_TOKEN_IDS)] = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    presence_penalty: Number | None = Field(None, ge=-2, le=2)
    frequency_penalty: Number | None = Field(None, ge=-2, le=2)
    repetition_penalty: Number | None = Field(None, ge=0.01, le=100)
    logit_bias: Annotated[dict[str, Number] | None, at_most(limits.MAX_LOGIT_BIAS)] = None
    bad_words: Annotated[list[Text] | None, at_most(limits.MAX_BAD_WORDS)] = None
    allowed_token_ids: Annotated[TokenIds | None, at_most(limits.MAX_ALLOWED_TOKEN_IDS)] = None
    prompt_logprobs: int | None = Field(None, ge=0, le=limits.MAX_LOGPROBS)
    extra_args: Scalars = Field(
        None, description="For plugins that read SamplingParams.extra_args."
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = Field(
        None,
        ge=-(2**31),
        lt=2**31,
        description="Lower values run first, with a policy that uses it.",
    )
    cache_salt: str | None = Field(
        None,
        max_length=MAX_SALT_CHARS,
        description="Only requests with equal salts share prefixes.",
    )
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, lt=2**31, description="Keep this many last tokens."
    )
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    kv_transfer_params: Scalars = None

    @property
    def num_completions(self) -> int:
        return self.n or 1

    @property
    @abstractmethod
    def max_new_tokens(self) -> int | None:
        """Maximum tokens of an answer; None for the rest of the context."""

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """Alternatives per token of the answer; None for no log-probabilities."""

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The same for the tokens of the prompt."""
        return self.prompt_logprobs

    @property
    @abstractmethod
    def adds_special_tokens(self) -> bool:
        """True if the tokenizer adds special tokens around the prompt."""

    @property
    def echoes_prompt(self) -> bool:
        """True if the prompt precedes the answer."""
        return False

    @property
    def is_score_only(self) -> bool:
        """True if the prompt is only scored: nothing is added to it."""
        return False

    def sampling_params(self, defaults: Mapping[str, Any], *, detokenize: bool) -> SamplingParams:
        """The parameters for the engine, with the model's `defaults`. Raises RequestError for a value out of bounds."""
        values: dict[str, Any] = {
            name: defaults[name] for name in DEFAULTABLE if defaults.get(name) is not None
        }
        for name in PASSED_ON:
            value = getattr(self, name)
            if value is not None:
                values[name] = value
        biases = {**(defaults.get("logit_bias") or {}), **token_biases(self.logit_bias or {})}
        if biases:
            values["logit_bias"] = biases
        return SamplingParams(
            **values,
            max_tokens=self.max_new_tokens,
            logprobs=self.num_logprobs,
            prompt_logprobs=self.num_prompt_logprobs,
            detokenize=detokenize,
            structured_output=self.structured_output,
            output_kind=OutputKind.DELTA if self.stream else OutputKind.FINAL,
        )


def token_biases(given: Mapping[str, float]) -> dict[int, float]:
    """`logit_bias` as JSON has it, with token ids as texts. Raises RequestError."""
    biases: dict[int, float] = {}
    for text, bias in given.items():
        if not (text.isascii() and text.isdigit() and len(text) <= 10):
            raise RequestError(
                f"logit_bias names '{text[:20]}', which is no token id", "logit_bias"
            )
        biases[int(text)] = bias
    return biases
