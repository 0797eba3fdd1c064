"""Stat logger `request-ends`: a line per finished request. Front end, on a thread of its own."""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import Field

from tenonry.errors import ConfigError
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.stats import StatRecord

logger = logging.getLogger("tenonry.request_ends")


class RequestEndsOptions(PluginOptions):
    """Options of `--stat-logger-option`."""

    path: Path | None = Field(default=None, description="File to append to, instead of the log.")


class RequestEnds(StatLogger):
    """Reports how each request ended."""

    interface_version = 1
    Options = RequestEndsOptions

    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        options = context.options
        path = options.path if isinstance(options, RequestEndsOptions) else None
        try:
            self.file = path.open("a", encoding="utf-8", buffering=1) if path else None
        except OSError as error:
            raise ConfigError(
                f"stat logger option request-ends.path={path} cannot be opened ({error.strerror}); "
                "name a file in a writable folder"
            ) from None

    def record(self, record: StatRecord) -> None:
        for request in record.iteration.finished if record.iteration else ():
            tokens = request.num_generation_tokens
            line = f"{request.request_id}: {request.finish_reason}, {tokens} tokens"
            if self.file:
                self.file.write(line + "\n")
            else:
                logger.info("%s", line)

    def shutdown(self) -> None:
        if self.file:
            self.file.close()
