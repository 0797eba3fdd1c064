"""One request for tokens, from admission to its answer, for both routes that generate. Front end, event loop.

A route provides an `Endpoint`: the differences between completions and chats. The order is the same for both: admit,
read the body, check the model, build the parameters, prepare the prompts, start the engine, and answer with a stream or
as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tenonry.outputs import RequestOutput
from tenonry_openai_server.admission import ADMISSION
from tenonry_openai_server.disconnect import DisconnectWatch
from tenonry_openai_server.errors import bad_request
from tenonry_openai_server.helper_thread import logprobs_size, off_loop
from tenonry_openai_server.ignored import Ignored, ignored
from tenonry_openai_server.merge import last_output, last_outputs, merge
from tenonry_openai_server.protocol.chunks import ChunkWriter
from tenonry_openai_server.protocol.options import ResponseContext, ResponseOptions
from tenonry_openai_server.protocol.reader import AnswerForm
from tenonry_openai_server.protocol.sampling import SamplingBody
from tenonry_openai_server.protocol.tokens import TokenTexts
from tenonry_openai_server.routes.bodies import read_body, server_state
from tenonry_openai_server.routes.identity import RequestIdentity
from tenonry_openai_server.routes.output_field import naming_field, with_field
from tenonry_openai_server.sse import EventStream
from tenonry_openai_server.state import ServerState

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM
    from tenonry.step import Adapter

BodyType = TypeVar("BodyType", bound=SamplingBody)
OutputStream = AsyncGenerator[RequestOutput, None]
NOT_ENFORCED = "no grammar enforces this keyword of a JSON schema"


class StartedGeneration(NamedTuple):
    """A request that runs once its streams are read: one per prompt, with the index of its first choice."""

    context: ResponseContext
    streams: list[OutputStream]
    bases: dict[str, int]
    form: AnswerForm | None

    def outputs(self) -> OutputStream:
        """Yield the outputs of all prompts as they arrive."""
        return self.streams[0] if len(self.streams) == 1 else merge(self.streams)


def admit(request: Request) -> None:
    """Reject a request that exceeds the capacity, before its body is read: floods are rejected cheaply.

    Raises APIError 503, QueueFullError, and HTTPException by an admission.
    """
    server_state(request).admit().check_capacity()
    admission = request.scope.get(ADMISSION)
    if admission is not None:
        admission.admit(request.scope)


def _as_text(_: ServerState, __: SamplingBody) -> None:
    """The answers are text."""


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[BodyType]):
    """Route-specific parts of request handling.

    `prompts(engine, body)` prepares a request's prompts for `AsyncLLM.generate`; `complete` makes the body of a whole
    answer from the last output of each prompt. `form`: parsing of answers, None for text.
    """

    body: type[BodyType]
    id_prefix: str
    prompts: Callable[[AsyncLLM, BodyType], Awaitable[list[Any]]]
    chunks: Callable[[ResponseContext, dict[str, int], AnswerForm | None], ChunkWriter]
    complete: Callable[
        [ResponseContext, Sequence[RequestOutput], AnswerForm | None], msgspec.Struct
    ]
    form: Callable[[ServerState, BodyType], AnswerForm | None] = _as_text

    async def answer(self, request: Request) -> Response:
        """Admit and answer a request. Raises APIError, RequestError and the engine's errors."""
        admit(request)
        body = await read_body(request, self.body)
        begun = await self.begin(request, body)
        if body.stream:
            write = self.chunks(begun.context, begun.bases, begun.form)
            return EventStream(begun.outputs(), write)
        async with DisconnectWatch(request.receive):
            outputs = await _last_of(begun.streams)
            return await _encoded(
                lambda: self.complete(begun.context, outputs, begun.form), outputs
            )

    async def begin(self, request: Request, body: BodyType) -> StartedGeneration:
        """Start a request whose body was read. Raises APIError and RequestError."""
        state = server_state(request)
        engine = state.admit()
        model, adapter = await state.choose_model(body.model, request.scope)
        _check_transfer(engine, body)
        identity = RequestIdentity.of(request, body, self.id_prefix)
        form = self.form(state, body)
        async with naming_field(body, engine.io_processor):
            generation = Generation(engine, body, identity, model, form, adapter)
            prompts = await self.prompts(engine, body)
            if form is not None and form.wanted:
                form = generation.force(form, prompts[0])
            elif form is not None:
                generation.bound(form, prompts[0])
            if state.settings.schema_keywords == "lenient":
                await generation.relax(ignored(request))
        streams = generation.start(prompts)
        bases = generation.choice_bases(len(streams))
        admission = request.scope.get(ADMISSION)
        if admission is not None:
            streams = [admission.counted(stream) for stream in streams]
        return StartedGeneration(generation.context, streams, bases, form)


class Generation:
    """A parsed request: its parameters, and its output options. Raises APIError 400 or RequestError."""

    def __init__(
        self,
        engine: AsyncLLM,
        body: SamplingBody,
        identity: RequestIdentity,
        model: str,
        form: AnswerForm | None = None,
        adapter: Adapter | None = None,
    ) -> None:
        self._engine = engine
        self._adapter = adapter
        self._body = body
        self._identity = identity
        options = ResponseOptions.of(body)
        texts = TokenTexts(
            engine.io_processor,
            as_ids=bool(body.return_tokens_as_token_ids),
            skip_special_tokens=body.skip_special_tokens is not False,
        )
        self.context = ResponseContext(identity.id, identity.created, model, options, texts)
        self._params = body.sampling_params(
            engine.model.default_sampling, detokenize=engine.io_processor is not None
        )
        if form is not None and form.hides_special:
            self._params = msgspec.structs.replace(self._params, skip_special_tokens=False)

    def force(self, form: AnswerForm, prompt: Any) -> AnswerForm:
        """Require calls, as specified by the form; returns the parsing of such an answer. Raises RequestError."""
        form, self._params = form.forced(prompt, self._params)
        return form

    def bound(self, form: AnswerForm, prompt: Any) -> None:
        """Apply the answer's grammar after the reasoning, if the prompt has begun one.

        Strict tools bound an answer without another grammar. Raises RequestError for schemas that are too large.
        """
        wanted = self._params.structured_output
        if wanted is None:
            wanted = form.strict_grammar()
        if wanted is None or wanted.start_after:
            return
        start_after = form.parsers.start_after(prompt)
        bounded = msgspec.structs.replace(wanted, start_after=start_after)
        self._params = msgspec.structs.replace(self._params, structured_output=bounded)

    async def relax(self, report: Ignored) -> None:
        """Drop keywords of the schema that cannot be enforced, and report them. Raises RequestError."""
        wanted = self._params.structured_output
        relaxed_output = getattr(self._engine.io_processor, "relaxed_output", None)
        if wanted is None or wanted.json is None or relaxed_output is None:
            return
        wanted, left_out = await asyncio.to_thread(relaxed_output, wanted)
        for pointer in left_out:
            report.report(f"schema{pointer}", NOT_ENFORCED)
        self._params = msgspec.structs.replace(self._params, structured_output=wanted)

    def start(self, prompts: Sequence[Any]) -> list[OutputStream]:
        """Return the engine's streams, one per prompt; each starts when it is first read."""
        return [self._start_one(number, prompt) for number, prompt in enumerate(prompts)]

    def _start_one(self, number: int, prompt: Any) -> OutputStream:
        outputs = self._engine.generate(
            prompt,
            self._params,
            self._identity.prompt_id(number),
            priority=self._body.priority or 0,
            tags=self._identity.tags,
            cache_salt=self._identity.cache_salt,
            adapter=self._adapter,
            data_parallel_rank=self._identity.data_parallel_rank,
            trace_headers=self._identity.trace_headers,
            kv_transfer_params=self._body.kv_transfer_params,
            add_special_tokens=self._body.adds_special_tokens,
        )
        if self._params.structured_output is None:
            return cast("OutputStream", outputs)
        return with_field(outputs, self._body, self._engine.io_processor)

    def choice_bases(self, num_prompts: int) -> dict[str, int]:
        """Id of each prompt → index of its first choice."""
        return {
            self._identity.prompt_id(number): number * self._params.n
            for number in range(num_prompts)
        }


def _check_transfer(engine: AsyncLLM, body: SamplingBody) -> None:
    """KV transfer parameters mean something to a KV connector only."""
    if body.kv_transfer_params and engine.config.kv_connector is None:
        raise bad_request(
            "kv_transfer_params: this server runs without a KV connector", "kv_transfer_params"
        )


async def _last_of(streams: Sequence[OutputStream]) -> list[RequestOutput]:
    if len(streams) == 1:
        return [await last_output(streams[0])]
    return await last_outputs(streams)


async def _encoded(make: Callable[[], Any], outputs: Sequence[RequestOutput]) -> Response:
    """Encode the result of `make` for the outputs as JSON. Writing lists of log-probabilities may take seconds."""
    body = await off_loop(logprobs_size(outputs), lambda: msgspec.json.encode(make()))
    return Response(body, media_type="application/json")
