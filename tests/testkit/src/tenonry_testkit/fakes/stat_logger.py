"""A stat logger that keeps all records, for tests of code that feeds stat loggers. Any process."""

from __future__ import annotations

from tenonry.info import EngineInfo
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.stats import StatRecord


class RecordingOptions(PluginOptions):
    """`fail_records`: number of failing calls of `record` before records are accepted."""

    fail_records: int = 0


class RecordingStatLogger(StatLogger):
    """`records`, `infos`, `rejections`, `sleeps` and `calls` hold everything, in order."""

    Options = RecordingOptions

    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        options = context.options
        self._failures_left = options.fail_records if isinstance(options, RecordingOptions) else 0
        self.records: list[StatRecord] = []
        self.infos: list[EngineInfo] = []
        self.rejections: list[str] = []
        self.sleeps: list[tuple[bool, int]] = []
        self.calls: list[str] = []

    def record(self, record: StatRecord) -> None:
        self.calls.append("record")
        if self._failures_left:
            self._failures_left -= 1
            raise RuntimeError("this stat logger was told to fail")
        self.records.append(record)

    def log_engine_initialized(self, info: EngineInfo) -> None:
        self.calls.append("log_engine_initialized")
        self.infos.append(info)

    def log(self) -> None:
        self.calls.append("log")

    def record_sleep_state(self, sleeping: bool, level: int) -> None:
        self.calls.append("record_sleep_state")
        self.sleeps.append((sleeping, level))

    def record_rejection(self, reason: str) -> None:
        self.calls.append("record_rejection")
        self.rejections.append(reason)

    def record_ignored_field(self) -> None:
        self.calls.append("record_ignored_field")

    def shutdown(self) -> None:
        self.calls.append("shutdown")
