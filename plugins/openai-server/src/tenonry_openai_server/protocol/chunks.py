"""The hot path: outputs of the engine as server-sent events, in bytes. Front end, event loop.

All that is constant in a stream is rendered once; a chunk that only brings text costs one JSON string and a join.
Whatever else a client asked for (log-probabilities, token ids, usage in each chunk) takes the longer way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from tenonry.errors import EngineGenerateError
from tenonry.outputs import CompletionOutput, Logprob, RequestOutput
from tenonry_openai_server.protocol.logprobs import (
    TokenTexts,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
)
from tenonry_openai_server.protocol.responses import Usage

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class Wishes:
    """What a client wants to hear besides text; `logprobs` is the number of alternatives, None for no logprobs."""

    __slots__ = (
        "continuous_usage",
        "echo",
        "include_usage",
        "logprobs",
        "max_tokens",
        "prompt_logprobs",
        "token_ids",
    )

    def __init__(
        self,
        *,
        logprobs: int | None = None,
        prompt_logprobs: bool = False,
        token_ids: bool = False,
        include_usage: bool = False,
        continuous_usage: bool = False,
        echo: bool = False,
        max_tokens: int | None = None,
    ) -> None:
        self.logprobs, self.prompt_logprobs, self.token_ids = logprobs, prompt_logprobs, token_ids
        self.include_usage, self.continuous_usage = include_usage, continuous_usage
        self.echo, self.max_tokens = echo, max_tokens

    @property
    def are_plain(self) -> bool:
        """Nothing but text, once a completion has begun."""
        return self.logprobs is None and not self.token_ids and not self.continuous_usage

    @property
    def include_logprobs(self) -> bool:
        """Lists that may be long, in any chunk."""
        return self.logprobs is not None or self.prompt_logprobs


class _Prompt:
    """What is known of one prompt: the index of its first completion, and its tokens."""

    __slots__ = ("base", "cached", "generated", "tokens")

    def __init__(self, base: int, tokens: int, cached: int) -> None:
        self.base, self.tokens, self.cached, self.generated = base, tokens, cached, 0


class ChunkWriter(ABC):
    """Outputs of one HTTP request to events. `bases`: request id to the index of its first completion."""

    object_name: ClassVar[str]
    delta_open: ClassVar[bytes]
    delta_close: ClassVar[bytes]

    def __init__(
        self,
        response_id: str,
        created: int,
        model: str,
        wishes: Wishes,
        texts: TokenTexts,
        bases: dict[str, int],
    ) -> None:
        self.wishes, self.texts, self._bases = wishes, texts, bases
        constant = {
            "id": response_id,
            "object": self.object_name,
            "created": created,
            "model": model,
        }
        self._open = b"data: " + _encode(constant)[:-1] + b',"choices":['
        self._no_usage = b',"usage":null' if wishes.include_usage else b""
        self._plain = wishes.are_plain
        self._counts = (
            wishes.max_tokens != 0
        )  # the engine makes at least one token, which then nobody sees
        self._plain_close = (
            self.delta_close
            + b',"logprobs":null,"finish_reason":null}]'
            + self._no_usage
            + b"}\n\n"
        )
        self._prompts: dict[str, _Prompt] = {}
        self._heads: dict[int, bytes] = {}  # of the completions that have begun
        self._lengths: dict[int, int] = {}  # characters sent, for text offsets

    def __call__(self, output: RequestOutput) -> bytes:
        """The events for one output; nothing, where it brings no text yet. Raises EngineGenerateError."""
        prompt = self._prompts.get(output.request_id) or self._meet(output)
        events = []
        for completion in output.outputs:
            prompt.generated += len(completion.token_ids) if self._counts else 0
            head = self._heads.get(prompt.base + completion.index)
            if head is None or completion.finish_reason is not None or not self._plain:
                events.append(self._full(prompt, output, completion))
            elif completion.text:
                events.append(head + _encode(completion.text) + self._plain_close)
        return events[0] if len(events) == 1 else b"".join(events)

    def _meet(self, output: RequestOutput) -> _Prompt:
        tokens = len(output.prompt_token_ids)
        prompt = _Prompt(self._bases.get(output.request_id, 0), tokens, output.num_cached_tokens)
        self._prompts[output.request_id] = prompt
        return prompt

    def _full(self, prompt: _Prompt, output: RequestOutput, completion: CompletionOutput) -> bytes:
        if completion.finish_reason == "error":
            raise EngineGenerateError(output.error or "no reason given")
        index = prompt.base + completion.index
        begins = index not in self._heads
        lead = b""
        if begins:
            self._heads[index] = self._open + b'{"index":%d,%s' % (index, self.delta_open)
            lead = self._lead(index, output)
        text, extras = self._content(index, output, completion, begins=begins)
        if not (begins or text or completion.token_ids or completion.finish_reason):
            return b""
        usage = self._no_usage
        if self.wishes.continuous_usage:
            usage = b',"usage":' + _encode(Usage.of(prompt.tokens, prompt.generated, prompt.cached))
        ending = {"finish_reason": completion.finish_reason} | extras
        if completion.finish_reason is not None:
            ending["stop_reason"] = completion.stop_reason
        fields = _encode(ending)[1:-1]
        return b"".join(
            (
                lead,
                self._heads[index],
                _encode(text),
                self.delta_close,
                b",",
                fields,
                b"}]",
                usage,
                b"}\n\n",
            )
        )

    def _lead(self, index: int, output: RequestOutput) -> bytes:
        """What comes before a completion's first text."""
        return b""

    @abstractmethod
    def _content(
        self, index: int, output: RequestOutput, completion: CompletionOutput, *, begins: bool
    ) -> tuple[str, dict[str, Any]]:
        """The text of a chunk, and what else stands in its choice."""

    def close(self) -> bytes:
        """The events after the last output."""
        if not self.wishes.include_usage:
            return DONE
        prompts = self._prompts.values()
        usage = Usage.of(
            sum(prompt.tokens for prompt in prompts),
            sum(prompt.generated for prompt in prompts),
            sum(prompt.cached for prompt in prompts),
        )
        return self._open + b'],"usage":' + _encode(usage) + b"}\n\n" + DONE


class CompletionChunks(ChunkWriter):
    """The stream of /v1/completions."""

    object_name = "text_completion"
    delta_open = b'"text":'
    delta_close = b""

    def _content(
        self, index: int, output: RequestOutput, completion: CompletionOutput, *, begins: bool
    ) -> tuple[str, dict[str, Any]]:
        wishes = self.wishes
        text, token_ids = completion.text, completion.token_ids
        positions: list[dict[int, Logprob] | None] = list(completion.logprobs or ())
        if wishes.max_tokens == 0:
            text, token_ids, positions = "", [], []
        extras: dict[str, Any] = {}
        if wishes.token_ids:
            extras["token_ids"] = token_ids
            if begins:
                extras["prompt_token_ids"] = output.prompt_token_ids
        if begins and wishes.prompt_logprobs and output.prompt_logprobs is not None:
            extras["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs, self.texts)
        if begins and wishes.echo:
            text = self.texts.prompt(output) + text
        extras["logprobs"] = None
        if wishes.logprobs is not None:
            offset = self._lengths.get(index, 0)
            self._lengths[index] = offset + len(text)
            if begins and wishes.echo:
                token_ids = [*output.prompt_token_ids, *token_ids]
                positions = [
                    *(output.prompt_logprobs or [None] * len(output.prompt_token_ids)),
                    *positions,
                ]
            extras["logprobs"] = completion_logprobs(token_ids, positions, self.texts, offset)
        return text, extras


class ChatChunks(ChunkWriter):
    """The stream of /v1/chat/completions."""

    object_name = "chat.completion.chunk"
    delta_open = b'"delta":{"content":'
    delta_close = b"}"

    def _lead(self, index: int, output: RequestOutput) -> bytes:
        ids = b""
        if self.wishes.token_ids and index == 0:
            ids = b',"prompt_token_ids":' + _encode(output.prompt_token_ids)
        if self.wishes.prompt_logprobs and index == 0 and output.prompt_logprobs is not None:
            ids += b',"prompt_logprobs":' + _encode(
                prompt_logprobs(output.prompt_logprobs, self.texts)
            )
        choice = (
            b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            % index
        )
        return self._open + choice + ids + self._no_usage + b"}\n\n"

    def _content(
        self, index: int, output: RequestOutput, completion: CompletionOutput, *, begins: bool
    ) -> tuple[str, dict[str, Any]]:
        extras: dict[str, Any] = (
            {"token_ids": completion.token_ids} if self.wishes.token_ids else {}
        )
        extras["logprobs"] = None
        if self.wishes.logprobs is not None:
            positions = completion.logprobs or []
            extras["logprobs"] = chat_logprobs(
                completion.token_ids, positions, self.texts, self.wishes.logprobs
            )
        return completion.text, extras
