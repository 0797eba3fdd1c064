"""IO processor: raw prompt to engine input, engine output to text. Front end only; helper threads may call it too."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from tenonry.errors import RequestError
from tenonry.info import ModelInfo
from tenonry.interfaces.plugin import Plugin, PluginContext
from tenonry.outputs import RequestOutput
from tenonry.sampling_params import SamplingParams
from tenonry.step import I32, Media


@dataclass(slots=True)
class IOProcessorContext(PluginContext):
    """Context of an IO processor. `submit("record_extra", record)` passes a record to every stat logger, from
    any thread.
    """

    model: ModelInfo
    submit: Callable[..., None] | None = None


class TextPrompt(msgspec.Struct, frozen=True):
    """A text to tokenise. `options`: further fields of the prompt, as the IO processor documents them."""

    text: str
    options: dict[str, Any] = {}


class TokenPrompt(msgspec.Struct, frozen=True):
    """Token ids, i32[n], with their text if it is known."""

    token_ids: I32
    text: str | None = None
    options: dict[str, Any] = {}


class OtherPrompt(msgspec.Struct, frozen=True):
    """Fields that only a custom IO processor can read."""

    options: dict[str, Any]


Prompt = TextPrompt | TokenPrompt | OtherPrompt
FORMS = "a text, a list of token ids, {'prompt': text} or {'prompt_token_ids': ids}"


def read_prompt(prompt: object) -> Prompt:
    """Return the prompt of a caller in one of `FORMS`. Raises RequestError for anything else."""
    match prompt:
        case TextPrompt() | OtherPrompt():
            return prompt
        case TokenPrompt():
            return msgspec.structs.replace(prompt, token_ids=_token_ids(prompt.token_ids))
        case str():
            return TextPrompt(prompt)
        case list() | tuple() | np.ndarray():
            return TokenPrompt(_token_ids(prompt))
        case Mapping() if prompt:
            return _read_fields(dict(prompt))
    raise RequestError(f"the prompt is {reprlib.repr(prompt)}; it must be {FORMS}", "prompt")


def _read_fields(fields: dict[str, Any]) -> Prompt:
    text = fields.pop("prompt", None)
    ids = fields.pop("prompt_token_ids", None)
    for name, value, kind in (("prompt", text, str), ("prompt_token_ids", ids, Sized)):
        if value is not None and not isinstance(value, kind):
            raise RequestError(
                f"'{name}' is a {type(value).__name__}; the prompt must be {FORMS}", "prompt"
            )
    if ids is not None:
        return TokenPrompt(_token_ids(ids), text, fields)
    return OtherPrompt(fields) if text is None else TextPrompt(text, fields)


def _token_ids(values: Any) -> I32:
    try:
        ids = np.asarray(values)
    except (TypeError, ValueError, OverflowError):  # lists of different lengths
        ids = np.asarray(None)
    if not ids.size:
        return np.empty(0, np.int32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise RequestError(
            f"prompt_token_ids={reprlib.repr(values)} must be a flat list of integers", "prompt"
        )
    if ids.min() < 0 or ids.max() >= 2**31:
        raise RequestError("prompt_token_ids must be between 0 and 2147483647", "prompt")
    return ids.astype(np.int32)


class ProcessedPrompt(msgspec.Struct, kw_only=True):
    """A prompt ready for the engine: `token_ids` i32[n], the text if known, and `bad_words` as token ids."""

    token_ids: I32
    text: str | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    features: dict[str, np.ndarray] | None = None
    media: Media | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.token_ids, np.ndarray):
            raise TypeError(f"token_ids={self.token_ids!r:.99} must be a numpy array")


class Detokenizer(Protocol):
    """Converts the output tokens of one completion to text incrementally; never half a character.

    `stop_reason`: the stop string that was found, or None. `consumed`: number of ids of the last `push` that belong to
    the output (all, unless a stop string ended it).
    """

    stop_reason: str | None
    consumed: int

    def push(self, token_ids: Sequence[int]) -> str:
        """Return text that is final: no half characters, nothing that may become a stop string."""

    def finish(self) -> str:
        """Return the withheld text, when the request ends for another reason than a stop string."""


class IOProcessor(Plugin[IOProcessorContext], ABC):
    """Tokenises, renders chats, detokenises. An exception fails the one request; RequestError is the user's fault."""

    @abstractmethod
    def process_prompt(
        self, prompt: Prompt, params: SamplingParams, *, add_special_tokens: bool = True
    ) -> ProcessedPrompt:
        """Tokenise a prompt, with the `options` that this processor documents.

        Raises RequestError for what it cannot read.
        """

    @abstractmethod
    def make_detokenizer(
        self, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> Detokenizer | None:
        """Return a new detokenizer for one completion, or None if there is no text."""

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids."""

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Text of each id alone, for log-probabilities: leading spaces are kept, half characters are marked."""
        return [self.decode([token_id]) for token_id in token_ids]

    def token_bytes(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = False
    ) -> list[bytes]:
        """Return the UTF-8 bytes that each id adds to a text: part of a character, or none for a skipped token."""
        return [
            self.decode([i], skip_special_tokens=skip_special_tokens).encode(errors="replace")
            for i in token_ids
        ]

    def render_chat(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> Any:
        """Render a chat as a prompt accepted by `read_prompt`. Raises RequestError if the model has no chat template.

        The content of a message is a text, a list of parts or None, in OpenAI's form.
        """
        raise RequestError(
            f"io processor {type(self).__name__} cannot render chats; use a plain prompt",
            "messages",
        )

    def chat_template(self) -> str | None:
        """Source of the template for chats with tools, from which the model's output format is inferred; or None."""
        return None

    def post_process(self, output: RequestOutput) -> RequestOutput:
        """Return an output, possibly changed: the last call before delivery, offline and online.

        An exception fails the request.
        """
        return output

    def get_tokenizer(self) -> Any:
        """Return the underlying tokenizer, for users who know its type. Raises ValueError without one."""
        raise ValueError(f"io processor {type(self).__name__} has no tokenizer")

    def reset_mm_cache(self) -> None:
        """Drop processed media. Does nothing by default."""

    def shutdown(self) -> None:
        """Release everything. Called once."""
