"""Server interface of route plugins: chats, in the terms of /v1/chat/completions, with the same checks. Front end,
event loop.

A route that speaks another protocol translates its requests into chats, and the events of an answer into its own form.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tenonry.interfaces.io_processor import read_prompt
from tenonry.outputs import CompletionOutput, RequestOutput
from tenonry_openai_server.admission import count_tokens_of
from tenonry_openai_server.disconnect import Disconnected, DisconnectWatch
from tenonry_openai_server.errors import as_api_error
from tenonry_openai_server.guard import REQUEST_ID
from tenonry_openai_server.ignored import NO_SUCH_FIELD, ignored
from tenonry_openai_server.protocol.parse import not_json, parse_body
from tenonry_openai_server.protocol.reader import CompletionReader
from tenonry_openai_server.protocol.requests import ChatRequest
from tenonry_openai_server.protocol.responses import TokenLogprob
from tenonry_openai_server.protocol.views import shown_chat_logprobs
from tenonry_openai_server.routes.bodies import check_content_type, server_state
from tenonry_openai_server.routes.chat import CHAT
from tenonry_openai_server.routes.field_check import FieldCheck
from tenonry_openai_server.routes.generation import StartedGeneration, admit
from tenonry_openai_server.routes.named_calls import NamedCalls
from tenonry_openai_server.routes.output_field import renamed_fields
from tenonry_openai_server.routes.prompts import need_text, render
from tenonry_openai_server.sse import PartStream
from tenonry_output_parsers.events import Event, TextDelta


class ChatPart(NamedTuple):
    """Next part of a chat's answer. Tokens are counted from the beginning.

    `finish_reason` is set in the last part: "stop", "length", "tool_calls" or "abort"; `stop_reason` is the stop string
    that ended the answer. `weight_version`: of the weights that made the newest tokens, "" for those at the start.
    `logprobs`: an entry of /v1/chat/completions per new token, if the chat requested them.
    """

    events: list[Event]
    finish_reason: str | None
    stop_reason: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    weight_version: str
    logprobs: Sequence[TokenLogprob] = ()


class ChatAnswer:
    """The answer to a chat. `model` is the served name, `created` a time in seconds."""

    def __init__(
        self, begun: StartedGeneration, new_call_id: Callable[[], str], names: Mapping[str, str]
    ) -> None:
        self.model = begun.context.model
        self.created = begun.context.created
        self.id = begun.context.id
        self.new_call_id = new_call_id
        self._begun = begun
        self._names = names
        self._generated = 0
        self._reader: CompletionReader | None = None

    async def parts(self) -> AsyncGenerator[ChatPart, None]:
        """Yield parts of the answer, as they arrive; closing it aborts the request. Propagates errors of the engine."""
        with renamed_fields(self._names):
            async with aclosing(self._begun.outputs()) as outputs:
                async for output in outputs:
                    for completion in output.outputs:
                        yield self._part(output, completion)

    def _part(self, output: RequestOutput, completion: CompletionOutput) -> ChatPart:
        if completion.finish_reason == "error":
            raise output.failure()
        form = self._begun.form
        self._generated += len(completion.token_ids)
        events: list[Event] = [TextDelta(completion.text)] if completion.text else []
        finish_reason = completion.finish_reason
        if form is not None:
            self._reader = self._reader or form.open(output)
            events = self._reader.read(completion)
            finish_reason = self._reader.finish_reason(completion)
        stop = completion.stop_reason
        logprobs = shown_chat_logprobs(self._begun.context, completion)
        return ChatPart(
            events,
            finish_reason,
            stop if isinstance(stop, str) else None,
            len(output.prompt_token_ids),
            output.num_cached_tokens,
            self._generated,
            output.weight_version,
            () if logprobs is None else logprobs.content,
        )


class ErrorAnswer(NamedTuple):
    """Error shown to a client: `kind` and `code` in OpenAI's words, `param` the field of the chat."""

    status: int
    kind: str
    message: str
    code: str | None
    param: str | None
    headers: Mapping[str, str]


class ChatDoor:
    """Chats of route plugins. The plugin checks its own fields; those of the chat are checked here."""

    async def read(self, request: Request) -> Any:
        """The JSON of a POST, after the checks of admission. Raises errors that the server answers with 4xx or 503."""
        admit(request)
        return await self.read_json(request)

    def count(self, request: Request, prompt_tokens: int, completion_tokens: int = 0) -> None:
        """Count tokens of the engine for limits; tokens of chats are counted already."""
        count_tokens_of(request.scope, prompt_tokens, completion_tokens)

    async def read_json(self, request: Request) -> Any:
        """The JSON of a POST that requests no tokens."""
        check_content_type(request)
        try:
            raw = await request.body()
        except ClientDisconnect:
            raise Disconnected from None
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise not_json(raw, error) from None

    def ignore(self, request: Request, part: str, reason: str = NO_SUCH_FIELD) -> None:
        """Report a part of a request that has no effect, such as "tools[2] (web_search)", and why, as a clause.

        The header `x-tenonry-ignored` of the response names it, a metric counts it, and the log has it once. Raises an
        error that the server answers with 400 if the operator has such requests rejected.
        """
        ignored(request).add(part, reason)

    def fields(self, request: Request) -> FieldCheck:
        """Check the fields of a request by the server's rules, and collect reports of ignored parts."""
        return FieldCheck(ignored(request))

    async def model(self, request: Request, name: str | None) -> str:
        """The served name of a request. Raises an error that the server answers with 404."""
        served, _ = await server_state(request).choose_model(name, request.scope)
        return served

    def request_id(self, request: Request) -> str:
        """Id of an HTTP request in the log."""
        return str(request.scope.get(REQUEST_ID, ""))

    def watch(self, request: Request) -> DisconnectWatch:
        """`async with door.watch(request):` ends its body when the client leaves. The body must have been read."""
        return DisconnectWatch(request.receive)

    async def chat(
        self, request: Request, fields: Mapping[str, Any], names: Mapping[str, str] | None = None
    ) -> ChatAnswer:
        """Start the answer to a chat, with the fields of /v1/chat/completions except `n` and `stream`.

        `names`: the client's path of fields by their path in the chat, for errors about them and their contents. Raises
        errors that the server answers with 4xx or 503.
        """
        names = names or {}
        with renamed_fields(names):
            body = msgspec.json.encode({**fields, "stream": True})
            chat = parse_body(ChatRequest, body, ignored(request).add)
            begun = await CHAT.begin(request, chat)
        parsers = server_state(request).parsers
        return ChatAnswer(begun, parsers.new_call_id if parsers is not None else _no_call, names)

    async def whole(self, request: Request, answer: ChatAnswer) -> list[ChatPart]:
        """Return all parts of an answer; a disconnected client ends it."""
        async with DisconnectWatch(request.receive):
            return [part async for part in answer.parts()]

    async def count_tokens(self, request: Request, fields: Mapping[str, Any]) -> int:
        """Number of tokens of a chat's prompt."""
        state = server_state(request)
        engine = state.engine
        chat = parse_body(ChatRequest, msgspec.json.encode(fields), ignored(request).add)
        await state.choose_model(chat.model, request.scope)
        prompt = await render(engine, chat.messages, chat, special=chat.adds_special_tokens)
        io_processor = need_text(engine, "a chat", "messages")
        params = chat.sampling_params({}, detokenize=True)
        return len(
            io_processor.process_prompt(
                read_prompt(prompt), params, add_special_tokens=chat.adds_special_tokens
            ).token_ids
        )

    def count_text(self, request: Request, text: str) -> int:
        """Number of tokens of a text by itself."""
        io_processor = server_state(request).engine.io_processor
        if io_processor is None or not text:
            return 0
        return len(NamedCalls.of(io_processor).encode(text, add_special_tokens=False))

    def stream(
        self,
        parts: AsyncGenerator[bytes, None],
        refuse: Callable[[Exception], Response],
        fail: Callable[[Exception], bytes],
    ) -> Response:
        """Server-sent events. `refuse` answers an error before the first event, `fail` returns the event of a later
        one.

        A disconnecting client closes `parts`.
        """
        return PartStream(parts, refuse, fail)

    def answer(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        """`value` as JSON."""
        return Response(msgspec.json.encode(value), status, headers, "application/json")

    def explain(self, request: Request, error: Exception) -> ErrorAnswer:
        """Client-visible form of any error; unexpected ones are logged."""
        if isinstance(error, Disconnected):
            raise error
        found = as_api_error(error, request.scope.get(REQUEST_ID, ""))
        return ErrorAnswer(
            found.status_code,
            found.kind,
            found.detail,
            found.code,
            found.param,
            found.headers or {},
        )


def _no_call() -> str:
    raise RuntimeError("answers that are text make no calls")
