"""What the routes that generate share: reading a body, who calls, starting the engine on a prompt. Front end."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tenonry.errors import RequestError
from tenonry.interfaces.io_processor import IOProcessor
from tenonry.outputs import RequestOutput
from tenonry.sampling_params import SamplingParams
from tenonry_openai_server.auth import TENANT
from tenonry_openai_server.errors import APIError, bad_request
from tenonry_openai_server.protocol.chunks import Wishes
from tenonry_openai_server.protocol.parse import Body, parse_body
from tenonry_openai_server.protocol.requests import ChatRequest, CompletionRequest
from tenonry_openai_server.protocol.sampling import SamplingBody
from tenonry_openai_server.serving.helper_thread import INLINE_CHARS, logprobs_size, off_loop
from tenonry_openai_server.state import ServerState
from tenonry_openai_server.watch import Disconnected

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

_TRACE = re.compile(r"[\x21-\x7e ]{1,512}")
BodyType = TypeVar("BodyType", bound=Body)


def server_state(request: Request) -> ServerState:
    """The state that `create_app` left with the application."""
    state: ServerState = request.app.state.server
    return state


async def read_body(request: Request, model: type[BodyType]) -> BodyType:
    """The checked body of a POST. Raises APIError 400 or 415, and Disconnected.

    The content type is insisted on: a web page can send any other kind across origins without asking first.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        shown = f"'{kind[:64]}'" if kind else "missing"
        raise APIError(
            415,
            f"the content type is {shown}; send application/json",
            code="unsupported_media_type",
        )
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise Disconnected from None
    return parse_body(model, raw)


class Call(NamedTuple):
    """One HTTP request that generates: its public id, and what of its origin travels with each prompt."""

    id: str
    created: int
    tags: dict[str, str | float]
    cache_salt: str | None
    trace_headers: dict[str, str] | None
    data_parallel_rank: int | None

    @classmethod
    def of(cls, request: Request, body: SamplingBody, prefix: str) -> Call:
        tenant = request.scope.get(TENANT)
        salt = f"{tenant}:{body.cache_salt or ''}" if tenant else body.cache_salt
        return cls(
            f"{prefix}-{uuid.uuid4().hex}",
            int(time.time()),
            {"tenant": tenant} if tenant else {},
            salt,
            _trace_headers(request),
            _rank(request),
        )

    def start(
        self,
        engine: AsyncLLM,
        prompt: Any,
        params: SamplingParams,
        body: SamplingBody,
        number: int = 0,
        **more: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The engine's stream for one prompt; `number` tells several prompts of a request apart."""
        outputs = engine.generate(
            prompt,
            params,
            self.prompt_id(number),
            priority=body.priority or 0,
            tags=self.tags,
            cache_salt=self.cache_salt,
            data_parallel_rank=self.data_parallel_rank,
            trace_headers=self.trace_headers,
            kv_transfer_params=body.kv_transfer_params,
            **more,
        )
        return cast("AsyncGenerator[RequestOutput, None]", outputs)

    def prompt_id(self, number: int) -> str:
        return f"{self.id}-{number}" if number else self.id


def _trace_headers(request: Request) -> dict[str, str] | None:
    found = {
        name: request.headers[name]
        for name in ("traceparent", "tracestate")
        if name in request.headers
    }
    return {name: value for name, value in found.items() if _TRACE.fullmatch(value)} or None


def _rank(request: Request) -> int | None:
    text = request.headers.get("x-data-parallel-rank")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise bad_request(
            f"header X-Data-Parallel-Rank is '{text[:20]}'; it must be a rank, such as 0"
        )
    return int(text)


def wishes_of(
    body: CompletionRequest | ChatRequest, *, logprobs: int | None, echo: bool = False
) -> Wishes:
    """What the client wants to hear. Raises APIError for options that fit nothing."""
    options = body.stream_options
    if options is not None and not body.stream:
        raise bad_request("stream_options needs stream: true", "stream_options")
    return Wishes(
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs is not None,
        token_ids=bool(body.return_token_ids),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
        echo=echo,
        max_tokens=body.max_tokens,
    )


def check_transfer(engine: AsyncLLM, body: SamplingBody) -> None:
    """KV transfer parameters mean something to a KV connector only."""
    if body.kv_transfer_params and engine.config.kv_connector is None:
        raise bad_request(
            "kv_transfer_params: this server runs without a KV connector", "kv_transfer_params"
        )


def need_text(engine: AsyncLLM, what: str, param: str) -> IOProcessor:
    """The IO processor. Raises APIError where the server runs without one."""
    if engine.io_processor is None:
        raise bad_request(
            f"{what} needs a tokenizer, and this server runs without one; send token ids", param
        )
    return engine.io_processor


async def respond(make: Callable[[], Any], outputs: Sequence[RequestOutput]) -> Response:
    """What `make` makes of the outputs, as JSON. Lists of log-probabilities may take seconds to write."""
    body = await off_loop(logprobs_size(outputs), lambda: msgspec.json.encode(make()))
    return Response(body, media_type="application/json")


async def truncated(
    engine: AsyncLLM, prompt: Any, body: SamplingBody, max_tokens: int | None, *, special: bool
) -> Any:
    """The prompt cut to its last `truncate_prompt_tokens` tokens; -1 keeps what fits beside the answer."""
    keep = body.truncate_prompt_tokens
    if keep is None:
        return prompt
    longest = engine.info.max_model_len
    if keep < 0:
        keep = max(longest - (max_tokens or 1), 0)
    if not 1 <= keep <= longest:
        raise RequestError(
            f"truncate_prompt_tokens={keep} is out of bounds: it must be at least 1 and at most {longest}",
            "truncate_prompt_tokens",
        )
    if isinstance(prompt, list):
        return prompt[-keep:]
    io_processor = need_text(engine, "truncate_prompt_tokens", "truncate_prompt_tokens")
    processed = await off_loop(
        len(prompt) if isinstance(prompt, str) else INLINE_CHARS + 1,
        lambda: io_processor.process_prompt(prompt, SamplingParams(), add_special_tokens=special),
    )
    return processed.token_ids[-keep:].tolist()
