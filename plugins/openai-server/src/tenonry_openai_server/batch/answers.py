"""The output: an answer per line, appended whole, so that a killed run can be continued. The command's process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from tenonry.errors import ConfigError, TenonryError
from tenonry_openai_server.batch.requests import Request


class Response(msgspec.Struct):
    """Response of the server."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class Answer(msgspec.Struct):
    """One line of the output. `error` is OpenAI's field: unanswered requests are not written here."""

    id: str
    custom_id: str
    response: Response
    error: None = None


class AnswerFile:
    """The file of answers, held by one process at a time.

    `done` has the `custom_id` of every answer in it, and `refused` counts those with a status other than 200. An
    incomplete last line was being written when the process was killed; it is removed, and its request is sent again.
    """

    def __init__(self, path: Path, wanted: Mapping[str, str]) -> None:
        """Open the file. `wanted`: `custom_id` → `id` of all requests. Raises ConfigError for a file of other answers,
        or in use.
        """
        self._path = path
        self.done: set[str] = set()
        self.refused = 0
        try:
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        try:
            self._lock()
            self._read(wanted)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, request: Request, status: int, request_id: str, body: bytes) -> None:
        """Append one answer. Raises TenonryError when it cannot be written."""
        response = Response(status, request_id, msgspec.Raw(body))
        line = msgspec.json.encode(Answer(request.id, request.custom_id, response)) + b"\n"
        try:
            written = os.write(self._file.fileno(), line)
        except OSError as error:
            raise TenonryError(f"{self._path} cannot be written: {error.strerror}") from None
        if written < len(line):
            raise TenonryError(f"{self._path} cannot be written: the disk is full")
        self._note(request.custom_id, status)

    def close(self) -> None:
        """Sync the file to disk, and release its lock."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"{self._path} is being written by another batch; wait for its end"
            ) from None

    def _read(self, wanted: Mapping[str, str]) -> None:
        self._file.seek(0)
        whole = 0
        with open(self._file.fileno(), "rb", closefd=False) as lines:
            for number, line in enumerate(lines, 1):
                if line.endswith(b"\n"):
                    whole += len(line)
                    self._take(line, number, wanted)
        self._file.truncate(whole)

    def _take(self, line: bytes, number: int, wanted: Mapping[str, str]) -> None:
        try:
            read = msgspec.json.decode(line, type=Answer)
        except ValueError:
            raise self._foreign(number, "is no answer of a batch") from None
        if read.custom_id not in wanted:
            raise self._foreign(
                number, f"answers custom_id {read.custom_id!r:.80}, which the input lacks"
            )
        if read.id != wanted[read.custom_id]:
            raise self._foreign(
                number, f"answers another request with custom_id {read.custom_id!r:.80}"
            )
        self._note(read.custom_id, read.response.status_code)

    def _foreign(self, number: int, what: str) -> ConfigError:
        return ConfigError(f"{self._path}, line {number} {what}; choose another output file")

    def _note(self, custom_id: str, status: int) -> None:
        self.done.add(custom_id)
        self.refused += status != 200


def as_json(body: bytes) -> bytes:
    """A body as JSON: a proxy's page of text becomes a JSON string."""
    try:
        msgspec.json.decode(body, type=Any)
    except ValueError:
        return msgspec.json.encode(body.decode("utf-8", "replace"))
    return body
