"""The lines of the input: one request each, in OpenAI's batch format. The command's process.

Format: https://platform.openai.com/docs/api-reference/batch/request-input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tenonry.errors import ConfigError

# Permitted requests of a file: inference, never operation of the server.
ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/classify",
)
MAX_LINE_BYTES = 64 << 20
MAX_ID_CHARS = 512
SHOWN_FAULTS = 10


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class _Body(msgspec.Struct):
    stream: Any = None


class Request(msgspec.Struct, frozen=True):
    """One request. `id` is derived from its content, to identify answers to this very request."""

    custom_id: str
    url: str
    body: bytes
    id: str


def read_requests(path: Path) -> Iterator[Request]:
    """Yield all requests, in order. Raises ConfigError that names the first faulty line."""
    for number, line in _lines(path):
        try:
            yield parse(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None


def check_requests(path: Path) -> dict[str, str]:
    """`custom_id` → `id` of every request. Raises ConfigError that lists faulty and repeated lines, up to ten."""
    found: dict[str, str] = {}
    faults: list[str] = []
    for number, line in _lines(path):
        try:
            request = parse(line)
            if request.custom_id in found:
                raise ValueError(f"custom_id {request.custom_id!r} is in an earlier line, too")
            found[request.custom_id] = request.id
        except ValueError as error:
            faults.append(f"line {number}: {error}")
            if len(faults) == SHOWN_FAULTS:
                break
    if faults:
        raise ConfigError(f"{path} is not a file of requests: {'; '.join(faults)}")
    if not found:
        raise ConfigError(f"{path} holds no request")
    return found


def parse(line: bytes) -> Request:
    """Parse one line. Raises ValueError with the field and its expected value."""
    read = msgspec.json.decode(line, type=_Line)
    if not 1 <= len(read.custom_id) <= MAX_ID_CHARS:
        raise ValueError(
            f"custom_id has {len(read.custom_id)} characters; 1 to {MAX_ID_CHARS} are allowed"
        )
    if read.method != "POST":
        raise ValueError(f"method is {read.method!r:.40}; use POST")
    if read.url not in ENDPOINTS:
        raise ValueError(f"url is {read.url!r:.80}; use one of {', '.join(ENDPOINTS)}")
    try:
        body = msgspec.json.decode(read.body, type=_Body)
    except msgspec.ValidationError:
        raise ValueError("body must be a JSON object") from None
    if body.stream:
        raise ValueError("body.stream is set; leave it out: a line gets one answer")
    digest = hashlib.blake2b(line, digest_size=12).hexdigest()
    return Request(read.custom_id, read.url, bytes(read.body), f"batch_req_{digest}")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, without the empty ones. Raises ConfigError for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise ConfigError(f"{path}, line {number} has more than {MAX_LINE_BYTES} bytes")
                line = line.strip()
                if line:
                    yield number, line
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
