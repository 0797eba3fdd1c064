"""POST /tokenize and /detokenize. Front end, event loop."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenonry.interfaces.io_processor import read_prompt
from tenonry.sampling_params import SamplingParams
from tenonry_openai_server.errors import bad_request
from tenonry_openai_server.helper_thread import off_loop
from tenonry_openai_server.openapi import describe
from tenonry_openai_server.protocol.requests import DetokenizeRequest, TokenizeRequest
from tenonry_openai_server.protocol.responses import DetokenizeResponse, TokenizeResponse
from tenonry_openai_server.routes.bodies import read_body, server_state
from tenonry_openai_server.routes.prompts import need_text, render

router = APIRouter()


@router.post(
    "/tokenize",
    **describe("Convert a text or a chat to token ids", TokenizeRequest, TokenizeResponse),
)
async def tokenize(request: Request) -> Response:
    """Tokenise a prompt as for the model."""
    state = server_state(request)
    engine = state.engine
    body = await read_body(request, TokenizeRequest)
    await state.choose_model(body.model, request.scope)
    io_processor = need_text(engine, "/tokenize", "prompt")
    if body.messages is None:
        text, special = body.prompt or "", body.add_special_tokens is not False
        ids = await off_loop(
            len(text), lambda: io_processor.encode(text, add_special_tokens=special)
        )
    else:
        special = bool(body.add_special_tokens)
        prompt = await render(engine, body.messages, body, special=special)
        size = sum(message.num_chars for message in body.messages)
        processed = await off_loop(
            size,
            lambda: io_processor.process_prompt(
                read_prompt(prompt), SamplingParams(), add_special_tokens=special
            ),
        )
        ids = processed.token_ids.tolist()
    answer = TokenizeResponse(count=len(ids), max_model_len=engine.info.max_model_len, tokens=ids)
    if body.return_token_strs:
        answer.token_strs = await off_loop(
            len(ids), lambda: [io_processor.decode([i]) for i in ids]
        )
    return Response(msgspec.json.encode(answer), media_type="application/json")


@router.post(
    "/detokenize", **describe("Convert token ids to text", DetokenizeRequest, DetokenizeResponse)
)
async def detokenize(request: Request) -> Response:
    """Convert token ids to text."""
    state = server_state(request)
    engine = state.engine
    body = await read_body(request, DetokenizeRequest)
    await state.choose_model(body.model, request.scope)
    io_processor = need_text(engine, "/detokenize", "tokens")
    _check_vocabulary(body.tokens, engine.model.vocab_size)
    text = await off_loop(len(body.tokens), lambda: io_processor.decode(body.tokens))
    return Response(msgspec.json.encode(DetokenizeResponse(text)), media_type="application/json")


def _check_vocabulary(token_ids: list[int], vocab_size: int) -> None:
    """Raises APIError 400 for the first id that the model's vocabulary lacks."""
    largest = max(token_ids, default=0)
    if largest >= vocab_size:
        place = next(at for at, token_id in enumerate(token_ids) if token_id >= vocab_size)
        raise bad_request(
            f"tokens.{place}: token id {token_ids[place]} is outside the vocabulary: ids go from 0 to {vocab_size - 1}",
            f"tokens.{place}",
        )
