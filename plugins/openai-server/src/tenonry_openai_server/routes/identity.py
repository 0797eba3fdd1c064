"""Identity of an HTTP request that generates, sent with each of its prompts. Front end."""

from __future__ import annotations

import re
import time
import uuid
from typing import NamedTuple

from starlette.requests import Request

from tenonry_openai_server.admission import TENANT
from tenonry_openai_server.errors import bad_request
from tenonry_openai_server.protocol.sampling import SamplingBody

TRACE_HEADERS = ("traceparent", "tracestate")
_TRACE = re.compile(r"[\x21-\x7e ]{1,512}")


class RequestIdentity(NamedTuple):
    """The public id and time of one HTTP request, and its origin data that travel with each prompt."""

    id: str
    created: int
    tags: dict[str, str | float]
    cache_salt: str | None
    trace_headers: dict[str, str] | None
    data_parallel_rank: int | None

    @classmethod
    def of(cls, request: Request, body: SamplingBody, prefix: str) -> RequestIdentity:
        """Raises APIError 400 for a header that is no rank."""
        tenant = request.scope.get(TENANT)
        return cls(
            id=f"{prefix}-{uuid.uuid4().hex}",
            created=int(time.time()),
            tags={"tenant": tenant} if tenant else {},
            cache_salt=f"{tenant}:{body.cache_salt or ''}" if tenant else body.cache_salt,
            trace_headers=_trace_headers(request),
            data_parallel_rank=_rank(request),
        )

    def prompt_id(self, number: int) -> str:
        """The id of one of the request's prompts, counted from 0."""
        return f"{self.id}-{number}" if number else self.id


def _trace_headers(request: Request) -> dict[str, str] | None:
    found = {name: request.headers[name] for name in TRACE_HEADERS if name in request.headers}
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
