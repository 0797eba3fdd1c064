"""Client's name of the field that requests the answer's form, for errors about it. Front end, event loop.

Below the routes this field is called `structured_output`, whichever field of the body it comes from.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

from tenonry.errors import EngineGenerateError, RequestError
from tenonry.interfaces.io_processor import read_prompt
from tenonry.outputs import RequestOutput
from tenonry.sampling_params import SamplingParams, StructuredOutput
from tenonry_openai_server.errors import APIError, as_api_error
from tenonry_openai_server.protocol.requests import ChatRequest
from tenonry_openai_server.protocol.sampling import SamplingBody

INNER = re.compile(r"\bstructured_output(\.(json|regex|choice|grammar))?\b")
OutputStream = AsyncGenerator[RequestOutput, None]


@asynccontextmanager
async def naming_field(body: SamplingBody, io_processor: Any) -> AsyncGenerator[None, None]:
    """Errors about the answer's form, raised within, name the field of `body`."""
    try:
        yield
    except (RequestError, EngineGenerateError) as error:
        if not INNER.search(f"{error.param} {error}"):
            raise
        raise await _of_body(error, body, io_processor) from None


async def with_field(outputs: OutputStream, body: SamplingBody, io_processor: Any) -> OutputStream:
    """The same outputs, whose errors name the field of `body`."""
    async with naming_field(body, io_processor), aclosing(outputs):
        async for output in outputs:
            yield output


def _renamed(error: RequestError | EngineGenerateError, field: str) -> APIError:
    """Return the error's answer with `field`; one about another field, such as min_tokens, keeps its own."""
    found = as_api_error(error)
    param = found.param if error.param is not None and not INNER.match(error.param) else field
    message = INNER.sub(lambda _: field, found.detail, count=1)
    return APIError(found.status_code, message, code=found.code, param=param, headers=found.headers)


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Rename fields in errors raised within for another protocol; `names`: their paths by those of a chat."""
    try:
        yield
    except APIError as error:
        param = error.param or ""
        for inner, own in names.items():
            if param == inner or param.startswith((f"{inner}.", f"{inner}[")):
                error.detail = error.detail.replace(inner, own, 1)
                error.param = own + param[len(inner) :]
                break
        raise


async def _of_body(
    error: RequestError | EngineGenerateError, body: SamplingBody, io_processor: Any
) -> APIError:
    """The error with the field of `body`; among several tools, the error of the first whose schema is rejected."""
    if body.output_field is not None or not isinstance(body, ChatRequest):
        return _renamed(error, body.output_field or "structured_outputs")
    for place, tool in enumerate(body.tools or ()):
        function = tool.served
        if function is None or not (function.strict or body.demands(function.name)):
            continue
        schema = {"type": "object", **(function.parameters or {})}
        found = await asyncio.to_thread(_rejection, io_processor, schema)
        if found is not None:
            return _renamed(found, f"tools[{place}].function.parameters")
    return _renamed(error, "tools")


def _rejection(io_processor: Any, schema: dict[str, Any]) -> RequestError | None:
    """The error of a request with this schema alone."""
    try:
        spec = StructuredOutput(json=json.dumps(schema))
        io_processor.process_prompt(read_prompt([0]), SamplingParams(structured_output=spec))
    except RequestError as error:
        return error
    return None
