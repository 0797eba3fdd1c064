"""Opens a model's small files, with a cap on their size and an error that names the file. Any process.

A model folder is untrusted data: a file may be huge, a directory, a blocking pipe, or not JSON at all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from tenonry.errors import ModelError

MAX_JSON_BYTES = 16 << 20
MAX_TEXT_BYTES = 4 << 20


def read_json(path: str | Path, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The JSON object in `path`. Raises ModelError: missing, not a plain file, above `max_bytes`, or not an object."""
    data = _read_bytes(Path(path), max_bytes)
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = _as_python_reads(data)
        if found is None:
            raise ModelError(
                f"{path} is not valid JSON: {error}; download or save the model again"
            ) from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} must hold a JSON object, not a {type(found).__name__}")
    return found


def _as_python_reads(data: bytes) -> Any:
    """Parse JSON with Infinity, -Infinity and NaN, which transformers writes and reads; None if invalid."""
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError):
        return None


def read_json_if_there(path: str | Path, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """As `read_json`, but a file that does not exist reads as an empty object."""
    return read_json(path, max_bytes=max_bytes) if Path(path).exists() else {}


def read_text(path: str | Path, *, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """The UTF-8 text in `path`. Raises ModelError as `read_json` does."""
    data = _read_bytes(Path(path), max_bytes)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{path} is not UTF-8 text: byte {error.start} is {data[error.start]:#04x}"
        ) from None


def _read_bytes(path: Path, max_bytes: int) -> bytes:
    if not path.exists():
        raise ModelError(f"{path} does not exist")
    if not path.is_file():  # opening a pipe or a device could block indefinitely
        raise ModelError(f"{path} is not a plain file")
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise ModelError(
            f"{path} is larger than {max_bytes} bytes, the most that is read of such a file"
        )
    return data
