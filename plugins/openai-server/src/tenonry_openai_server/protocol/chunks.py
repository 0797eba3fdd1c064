"""The hot path: outputs of the engine as server-sent events, in bytes. Front end, event loop.

Constant parts of a stream are rendered once; a chunk with text only costs one JSON string and a join. Chunks with other
requested fields (log-probabilities, token ids, usage in each chunk) take the slow path.

U+0085, U+2028 and U+2029 are escaped: some clients end a line of the stream there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from tenonry.outputs import CompletionOutput, RequestOutput
from tenonry_openai_server.protocol.options import ResponseContext
from tenonry_openai_server.protocol.responses import Usage
from tenonry_openai_server.protocol.views import (
    CompletionView,
    shown_chat_logprobs,
    shown_prompt_logprobs,
)

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode
_LINE_BREAKS = {
    "\u0085".encode(): b"\\u0085",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}


def on_one_line(data: bytes) -> bytes:
    """Events of JSON in UTF-8, with line breaks beyond ASCII escaped."""
    if data.isascii():
        return data
    for line_break, escaped in _LINE_BREAKS.items():
        data = data.replace(line_break, escaped)
    return data


class _Prompt:
    """Data of one prompt: the index of its first completion, and its tokens."""

    __slots__ = ("base", "cached", "generated", "tokens", "version")

    def __init__(self, base: int, tokens: int, cached: int) -> None:
        self.base = base
        self.tokens = tokens
        self.cached = cached
        self.generated = 0
        self.version = b""  # of the weights, as a field


class ChunkWriter(ABC):
    """Outputs of one HTTP request to events. `bases`: request id to the index of its first completion."""

    object_name: ClassVar[str]
    delta_open: ClassVar[bytes]
    delta_close: ClassVar[bytes]

    def __init__(self, context: ResponseContext, bases: Mapping[str, int]) -> None:
        options = context.options
        self.context = context
        self._bases = bases
        constant = {
            "id": context.id,
            "object": self.object_name,
            "created": context.created,
            "model": context.model,
        }
        self._open = on_one_line(b"data: " + _encode(constant)[:-1] + b',"choices":[')
        self._no_usage = b',"usage":null' if options.include_usage else b""
        self._plain = options.are_plain
        self._counts = not options.score_only
        self._plain_close = (
            self.delta_close
            + b',"logprobs":null,"finish_reason":null}]'
            + self._no_usage
            + b"}\n\n"
        )
        self._prompts: dict[str, _Prompt] = {}
        self._heads: dict[int, bytes] = {}  # of the completions that have begun

    def __call__(self, output: RequestOutput) -> bytes:
        """Return events for one output; none without new text. Raises EngineGenerateError."""
        prompt = self._prompts.get(output.request_id) or self._begin(output)
        events = []
        if output.weight_version:
            prompt.version = b',"weight_version":' + _encode(output.weight_version)
        for completion in output.outputs:
            prompt.generated += len(completion.token_ids) if self._counts else 0
            head = self._heads.get(prompt.base + completion.index)
            if head is None or completion.finish_reason is not None or not self._plain:
                events.append(self._full(prompt, output, completion))
            elif completion.text:
                events.append(head + _encode(completion.text) + self._plain_close)
        return on_one_line(events[0] if len(events) == 1 else b"".join(events))

    def _begin(self, output: RequestOutput) -> _Prompt:
        tokens = len(output.prompt_token_ids)
        prompt = _Prompt(self._bases.get(output.request_id, 0), tokens, output.num_cached_tokens)
        self._prompts[output.request_id] = prompt
        return prompt

    def _full(self, prompt: _Prompt, output: RequestOutput, completion: CompletionOutput) -> bytes:
        if completion.finish_reason == "error":
            raise output.failure()
        index = prompt.base + completion.index
        begins = index not in self._heads
        lead = b""
        if begins:
            self._heads[index] = self._open + b'{"index":%d,%s' % (index, self.delta_open)
            lead = self._lead(index, output, self._usage_before(prompt, completion))
        text, extras = self._content(index, output, completion, begins=begins)
        if not (begins or text or completion.token_ids or completion.finish_reason):
            return b""
        usage = self._usage(prompt, prompt.generated)
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
                prompt.version,
                b"}\n\n",
            )
        )

    def _usage(self, prompt: _Prompt, generated: int) -> bytes:
        """Field `usage` of a chunk, after `generated` tokens."""
        if not self.context.options.continuous_usage:
            return self._no_usage
        return b',"usage":' + _encode(Usage.of(prompt.tokens, generated, prompt.cached))

    def _usage_before(self, prompt: _Prompt, completion: CompletionOutput) -> bytes:
        """Return the usage before the tokens of `completion`, which are counted already."""
        new = len(completion.token_ids) if self._counts else 0
        return self._usage(prompt, prompt.generated - new)

    def _lead(self, index: int, output: RequestOutput, usage: bytes) -> bytes:
        """The events before a completion's first text."""
        return b""

    @abstractmethod
    def _content(
        self, index: int, output: RequestOutput, completion: CompletionOutput, *, begins: bool
    ) -> tuple[str, dict[str, Any]]:
        """Text of a chunk, and the other fields of its choice."""

    def close(self) -> bytes:
        """The events after the last output."""
        if not self.context.options.include_usage:
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

    def __init__(self, context: ResponseContext, bases: Mapping[str, int]) -> None:
        super().__init__(context, bases)
        self._views: dict[int, CompletionView] = {}

    def _content(
        self, index: int, output: RequestOutput, completion: CompletionOutput, *, begins: bool
    ) -> tuple[str, dict[str, Any]]:
        if begins:
            self._views[index] = CompletionView(self.context)
        shown = self._views[index].show(output, completion)
        extras: dict[str, Any] = {}
        if self.context.options.token_ids:
            extras["token_ids"] = shown.token_ids
            if begins:
                extras["prompt_token_ids"] = output.prompt_token_ids
        if begins and (prompt := shown_prompt_logprobs(self.context, output)) is not None:
            extras["prompt_logprobs"] = prompt
        extras["logprobs"] = shown.logprobs
        return shown.text, extras


class ChatChunks(ChunkWriter):
    """The stream of /v1/chat/completions."""

    object_name = "chat.completion.chunk"
    delta_open = b'"delta":{"content":'
    delta_close = b"}"

    def _lead(self, index: int, output: RequestOutput, usage: bytes) -> bytes:
        of_prompt = b""
        if self.context.options.token_ids and index == 0:
            of_prompt = b',"prompt_token_ids":' + _encode(output.prompt_token_ids)
        if index == 0 and (prompt := shown_prompt_logprobs(self.context, output)) is not None:
            of_prompt += b',"prompt_logprobs":' + _encode(prompt)
        choice = (
            b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            % index
        )
        return self._open + choice + of_prompt + usage + b"}\n\n"

    def _content(
        self, index: int, output: RequestOutput, completion: CompletionOutput, *, begins: bool
    ) -> tuple[str, dict[str, Any]]:
        extras: dict[str, Any] = {}
        if self.context.options.token_ids:
            extras["token_ids"] = completion.token_ids
        extras["logprobs"] = shown_chat_logprobs(self.context, completion)
        return completion.text, extras
