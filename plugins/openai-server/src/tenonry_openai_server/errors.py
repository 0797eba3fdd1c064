"""The answer to a client when something fails: OpenAI's error shape, everywhere. Front end only.

Errors for the client (`RequestError`, `APIError`) keep their text. For all others the client gets a fixed sentence and
the request id, and the log the cause: texts of unexpected exceptions may hold addresses.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException

from tenonry.errors import (
    DrainingError,
    EngineDeadError,
    EngineGenerateError,
    ErrorCode,
    PluginFault,
    QueueFullError,
    RequestError,
    Unsupported,
)

logger = logging.getLogger("tenonry.server")
CLOSED = "Cannot call write() after write_eof()"  # of asyncio and uvloop

MAX_MESSAGE_CHARS = 2000
HELD_RETRY_S = 5.0
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
REMEDIES = {  # by the field that the worker does not support
    "structured_output": "leave out structured output, strict tools and a tool_choice that demands calls, or serve the "
    "model with a worker that has grammars, such as --worker torch",
    "media": "send text only, or serve the model with a worker that sees images",
    "adapter": "name the model itself, or serve it with a worker that has adapters, such as --worker torch",
}
_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ErrorInfo(msgspec.Struct):
    """The object under "error"."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """A whole error response, or the data of an error event in a stream."""

    error: ErrorInfo


class APIError(HTTPException):
    """An answer other than success. `code` is for programs, `param` the offending field, `retry_after_s` a hint."""

    def __init__(
        self,
        status_code: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        merged = dict(headers or {})
        if retry_after_s is not None:
            merged["retry-after"] = str(max(1, math.ceil(retry_after_s)))
        super().__init__(status_code, clean(message), merged)
        self.code = code
        self.param = param

    @property
    def kind(self) -> str:
        """OpenAI's word for errors of this status."""
        default = "invalid_request_error" if self.status_code < 500 else "server_error"
        return _TYPES.get(self.status_code, default)

    def body(self) -> bytes:
        """OpenAI's shape as JSON."""
        info = ErrorInfo(self.detail, self.kind, self.param, self.code)
        return msgspec.json.encode(ErrorBody(info))


def clean(message: str) -> str:
    """A message that clients may see: bounded, and without memory addresses."""
    text = _ADDRESS.sub("", message)
    return text if len(text) <= MAX_MESSAGE_CHARS else text[:MAX_MESSAGE_CHARS] + "…"


def bad_request(message: str, param: str | None = None, code: str = "invalid_request") -> APIError:
    """400: the request is wrong and will stay wrong."""
    return APIError(400, message, param=param, code=code)


def is_closed(error: Exception) -> bool:
    """Return True if the connection was closed before this answer, because of bytes that are no HTTP."""
    return CLOSED in str(error)


def as_api_error(error: Exception, request_id: str = "") -> APIError:
    """The answer to a client about `error`. Unexpected errors are logged here, with their traceback."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, HTTPException):
        return _from_http(error)
    if isinstance(error, RequestError) and error.code != "plugin_failed":
        return bad_request(str(error), error.param, error.code)
    if isinstance(error, QueueFullError):
        return _from_queue(error)
    if isinstance(error, EngineGenerateError) and (fault := _fault_of_request(error)):
        return fault
    if isinstance(error, Unsupported):
        return bad_request(str(error), code="unsupported")
    if isinstance(error, EngineDeadError):
        return APIError(
            503, "the engine has died; send the request again", code="engine_dead", retry_after_s=5
        )
    return _from_failure(error, request_id)


def _fault_of_request(error: EngineGenerateError) -> APIError | None:
    """Return the answer if a row failed because of its request's parameters; None for other failures of a row."""
    match error.code:
        case ErrorCode.NO_TOKEN_LEFT:
            return bad_request(f"{error.reason}; allow more of them", code=error.code)
        case ErrorCode.NO_PROMPT_LOGPROBS:
            remedy = "leave them out, and with echo logprobs, too"
            return bad_request(f"{error.reason}; {remedy}", "prompt_logprobs", error.code)
        case ErrorCode.UNSUPPORTED if error.param in REMEDIES:
            return bad_request(f"{error.reason}; {REMEDIES[error.param]}", code=error.code)
        case ErrorCode.ENGINE_HELD:
            return APIError(503, error.reason, code=error.code, retry_after_s=HELD_RETRY_S)
        case ErrorCode.ENGINE_CRASH:
            logger.error("%s", error)
            message = "engines died whenever this request ran; it is not tried again"
            return APIError(500, message, code=error.code)
    return None


def _from_failure(error: Exception, request_id: str) -> APIError:
    """Return a failure of the server: the cause is logged, the client receives a fixed sentence."""
    note = f"; the server's log says more about request {request_id}" if request_id else ""
    if isinstance(error, EngineGenerateError):
        logger.error("request %s failed in the engine: %s", request_id, error)
        return APIError(
            500, f"the engine could not finish this request{note}", code="generation_failed"
        )
    level = logging.DEBUG if is_closed(error) else logging.ERROR
    logger.log(level, "request %s failed", request_id, exc_info=error)
    if isinstance(error, PluginFault):
        return APIError(
            500, f"plugin '{error.plugin}' failed on this request{note}", code="plugin_failed"
        )
    return APIError(500, f"internal error{note}", code="internal_error")


def _from_queue(error: QueueFullError) -> APIError:
    if isinstance(error, DrainingError):
        return APIError(
            503, "the server is shutting down", code="draining", retry_after_s=error.retry_after_s
        )
    return APIError(429, str(error), code="queue_full", retry_after_s=error.retry_after_s)


def _from_http(error: HTTPException) -> APIError:
    codes = {404: "unknown_url", 405: "method_not_allowed", 429: "rate_limit_exceeded"}
    return APIError(
        error.status_code,
        str(error.detail),
        code=codes.get(error.status_code),
        headers=error.headers,
    )


async def send_error(send: Send, error: APIError) -> None:
    """Answer with `error`, as plain ASGI."""
    body = error.body()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [
        (name.lower().encode(), value.encode("latin-1"))
        for name, value in (error.headers or {}).items()
    ]
    await send({"type": "http.response.start", "status": error.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
