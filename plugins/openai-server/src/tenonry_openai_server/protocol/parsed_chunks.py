"""The stream of a chat whose answers a parser reads: a chunk per event. Front end, event loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tenonry.outputs import CompletionOutput, RequestOutput
from tenonry_openai_server.protocol.chunks import ChatChunks
from tenonry_openai_server.protocol.options import ResponseContext
from tenonry_openai_server.protocol.reader import AnswerForm, CompletionReader
from tenonry_openai_server.protocol.views import shown_chat_logprobs
from tenonry_output_parsers.events import CallArguments, CallStart, Event, ReasoningDelta, TextDelta

_encode = msgspec.json.Encoder().encode


class DeltaWriter:
    """Events of one completion as deltas: calls are numbered, and receive ids."""

    __slots__ = ("_num_calls", "_reader")

    def __init__(self, reader: CompletionReader) -> None:
        self._reader = reader
        self._num_calls = 0

    def deltas(self, completion: CompletionOutput) -> list[dict[str, Any]]:
        """Deltas of the next part of the completion. Raises PluginFault."""
        found = map(self._delta, self._reader.read(completion))
        return [delta for delta in found if delta is not None]

    def finish_reason(self, completion: CompletionOutput) -> str | None:
        """Finish reason of the answer, as shown to clients."""
        return self._reader.finish_reason(completion)

    def _delta(self, event: Event) -> dict[str, Any] | None:
        if isinstance(event, TextDelta):
            return {"content": event.text}
        if isinstance(event, ReasoningDelta):
            return {"reasoning_content": event.text, "reasoning": event.text}
        if isinstance(event, CallStart):
            self._num_calls += 1
            return self._call(
                {"name": event.name, "arguments": ""}, {"id": event.call_id, "type": "function"}
            )
        if isinstance(event, CallArguments):
            return self._call({"arguments": event.text}, {})
        return None

    def _call(self, function: dict[str, str], head: dict[str, str]) -> dict[str, Any]:
        index = self._num_calls - 1
        return {"tool_calls": [{"index": index, **head, "function": function}]}


def chat_chunks(
    context: ResponseContext, bases: Mapping[str, int], form: AnswerForm | None
) -> ChatChunks:
    """Stream a chat; without a form its text is unchanged."""
    if form is None:
        return ChatChunks(context, bases)
    return ParsedChatChunks(context, bases, form)


class ParsedChatChunks(ChatChunks):
    """The stream of /v1/chat/completions for a model with an output parser."""

    def __init__(
        self, context: ResponseContext, bases: Mapping[str, int], form: AnswerForm
    ) -> None:
        super().__init__(context, bases)
        self._form = form
        self._plain = False
        self._writers: dict[int, DeltaWriter] = {}

    def _full(self, prompt: Any, output: RequestOutput, completion: CompletionOutput) -> bytes:
        if completion.finish_reason == "error":
            raise output.failure()
        index = prompt.base + completion.index
        lead = b""
        if index not in self._writers:
            self._writers[index] = DeltaWriter(self._form.open(output))
            self._heads[index] = self._open + b'{"index":%d,"delta":' % index
            lead = self._lead(index, output, self._usage_before(prompt, completion))
        writer = self._writers[index]
        deltas = writer.deltas(completion)
        extras = self._extras(completion)
        ending: dict[str, Any] = {"finish_reason": None}
        if completion.finish_reason is not None:
            ending = {
                "finish_reason": writer.finish_reason(completion),
                "stop_reason": completion.stop_reason,
            }
        if not deltas and (extras or ending["finish_reason"]):
            deltas = [{}]
        chunks = [lead]
        for place, delta in enumerate(deltas):
            fields: dict[str, Any] = {"logprobs": None, "finish_reason": None}
            fields |= extras if place == 0 else {}
            fields |= ending if place == len(deltas) - 1 else {}
            chunks.append(self._chunk(index, delta, fields, prompt))
        return b"".join(chunks)

    def _chunk(
        self, index: int, delta: dict[str, Any], fields: dict[str, Any], prompt: Any
    ) -> bytes:
        usage = self._usage(prompt, prompt.generated)
        rest = _encode(fields)[1:-1]
        return b"".join(
            (self._heads[index], _encode(delta), b",", rest, b"}]", usage, prompt.version, b"}\n\n")
        )

    def _extras(self, completion: CompletionOutput) -> dict[str, Any]:
        """Fields for the tokens of a part, in addition to events."""
        extras: dict[str, Any] = {}
        if self.context.options.token_ids and completion.token_ids:
            extras["token_ids"] = completion.token_ids
        logprobs = shown_chat_logprobs(self.context, completion)
        if logprobs is not None:
            extras["logprobs"] = logprobs
        return extras
