"""The stat logger `jsonl`: one JSON line per finished request, which is a trace for `tenonry bench serve --trace`.

Lengths, times and tags; nothing of prompts or answers. Runs on the observer thread of one process.
"""

from __future__ import annotations

import json
import logging
import math
from logging.handlers import RotatingFileHandler

import msgspec
from pydantic import Field

from tenonry.errors import ConfigError
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.stats import FinishedRequestStats, StatRecord

_ENCODER = msgspec.json.Encoder()


class JsonlOptions(PluginOptions):
    """Options of the jsonl stat logger."""

    path: str = Field("requests.jsonl", min_length=1, description="File to append to.")
    max_bytes: int = Field(
        100_000_000, ge=0, description="File size in bytes that triggers rotation. 0 disables it."
    )
    backups: int = Field(
        5, ge=1, description="Earlier files kept, as PATH.1 (the latest), PATH.2 and so on."
    )


class _LineFile(RotatingFileHandler):
    """Rotates by size and flushes the lines of each record; its errors reach the caller."""

    terminator = ""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of `logging`
        raise  # noqa: PLE0704 - called within `except`


class JsonlStatLogger(StatLogger):
    """Appends a line per finished request. Raises ConfigError for a file that cannot be opened."""

    Options = JsonlOptions

    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        options = context.options if isinstance(context.options, JsonlOptions) else JsonlOptions()
        names = context.config.served_model_name
        self._model = names[0] if names else context.config.model
        try:
            self._file = _LineFile(
                options.path,
                maxBytes=options.max_bytes,
                backupCount=options.backups,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise ConfigError(
                f"stat logger option jsonl.path={options.path} cannot be opened ({error.strerror}); "
                "name a file in a writable folder"
            ) from None

    def record(self, record: StatRecord) -> None:
        if record.iteration is not None and (finished := record.iteration.finished):
            lines = [trace_line(each, record.engine_index, self._model) for each in finished]
            self._file.emit(logging.makeLogRecord({"msg": _encode(lines)}))

    def shutdown(self) -> None:
        self._file.close()


class TraceLine(msgspec.Struct):
    """The fields of a line: counts in tokens, `arrival_time` in seconds since 1970, durations in seconds. `model`: its
    first served name.
    """

    request_id: str
    model: str
    arrival_time: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    max_tokens: int | None
    n: int
    reason: str
    queued_s: float
    ttft_s: float | None
    itl_mean_s: float | None
    e2e_s: float
    preemptions: int
    engine: int
    tags: dict[str, str | float]


def trace_line(request: FinishedRequestStats, engine: int, model: str) -> TraceLine:
    """Return the line of a finished request."""
    gaps = request.num_generation_tokens - 1 if request.n == 1 else 0
    tags = request.tags
    return TraceLine(
        request_id=request.request_id,
        model=model,
        arrival_time=request.start_time,
        prompt_tokens=request.num_prompt_tokens,
        output_tokens=request.num_generation_tokens,
        cached_tokens=request.num_cached_tokens,
        max_tokens=request.max_tokens,
        n=request.n,
        reason=request.finish_reason,
        queued_s=request.queued_s,
        ttft_s=request.ttft_s,
        itl_mean_s=request.decode_s / gaps if gaps > 0 else None,
        e2e_s=request.e2e_latency_s,
        preemptions=request.num_preemptions,
        engine=engine,
        tags=tags and {name: value for name, value in tags.items() if _has_json(value)},
    )


def _encode(lines: list[TraceLine]) -> str:
    try:
        return _ENCODER.encode_lines(lines).decode()
    except UnicodeEncodeError:  # half of a surrogate pair, which the file replaces
        return "".join(
            json.dumps(msgspec.to_builtins(line), ensure_ascii=False) + "\n" for line in lines
        )


def _has_json(value: str | float) -> bool:
    return isinstance(value, str) or math.isfinite(value)
