"""The conformance suite of stat loggers: any numbers are accepted without an error. Test process.

from tenonry_testkit.stat_logger import StatLoggerContract

class TestMine(StatLoggerContract):
    stat_logger = "my_package:MyStatLogger"
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import hypothesis.strategies as st
import msgspec
from hypothesis import Phase

from tenonry.config import EngineConfig
from tenonry.info import EngineInfo, PluginRecord
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.stats import FinishedRequestStats, IterationStats, SchedulerStats, StatRecord
from tenonry_testkit.search import PHASES, search
from tenonry_testkit.targets import resolve_target

MANY_RECORDS = 2000
REJECTIONS = ("queue_full", "invalid", "draining")
COUNTS = st.integers(0, 2**31)
SECONDS = st.floats(0, 1e6, allow_nan=False)
TEXTS = st.text(max_size=12)
TRACES = st.dictionaries(
    st.sampled_from(("traceparent", "tracestate")),
    TEXTS | st.just("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
)


def scheduler_stats() -> st.SearchStrategy[SchedulerStats]:
    """Possible reports of an engine; a scheduler's own numbers may have any name."""
    extra = st.dictionaries(
        TEXTS, st.floats(allow_nan=True, allow_infinity=True) | COUNTS.map(float), max_size=3
    )
    return st.builds(
        SchedulerStats,
        num_running=COUNTS,
        num_waiting=COUNTS,
        kv_cache_usage=st.floats(0, 1),
        prefix_cache_queries=COUNTS,
        prefix_cache_hits=COUNTS,
        num_preemptions=COUNTS,
        num_steps=COUNTS,
        frames_dropped=COUNTS,
        num_drafts=COUNTS,
        num_draft_tokens=COUNTS,
        num_accepted_tokens=COUNTS,
        extra=extra,
    )


def finished_requests() -> st.SearchStrategy[FinishedRequestStats]:
    """Requests of all kinds, with arbitrary tags and trace headers."""
    return st.builds(
        FinishedRequestStats,
        request_id=TEXTS,
        finish_reason=st.sampled_from(("stop", "length", "abort", "error")),
        num_prompt_tokens=COUNTS,
        num_generation_tokens=COUNTS,
        num_cached_tokens=COUNTS,
        e2e_latency_s=SECONDS,
        ttft_s=st.none() | SECONDS,
        queued_s=SECONDS,
        prefill_s=SECONDS,
        decode_s=SECONDS,
        num_preemptions=COUNTS,
        max_tokens=st.none() | COUNTS,
        n=st.integers(1, 128),
        tags=st.dictionaries(TEXTS, TEXTS | st.floats(allow_nan=True), max_size=3),
        trace_headers=st.none() | TRACES,
        start_time=SECONDS,
    )


def records() -> st.SearchStrategy[StatRecord]:
    """Draw one delivery: either part may be missing, and engines may be new."""
    iteration = st.builds(
        IterationStats,
        num_prompt_tokens=COUNTS,
        num_cached_tokens=COUNTS,
        num_generation_tokens=COUNTS,
        ttft_s=st.lists(SECONDS, max_size=3),
        inter_token_latency_s=st.lists(SECONDS, max_size=3),
        finished=st.lists(finished_requests(), max_size=3),
    )
    return st.builds(
        StatRecord,
        engine_index=st.integers(0, 9),
        time=SECONDS,
        scheduler=st.none() | scheduler_stats(),
        iteration=st.none() | iteration,
    )


def engine_info(num_engines: int = 1) -> EngineInfo:
    """Return the facts of several engines."""
    return EngineInfo(
        model="/models/fake",
        served_model_name='fake "model"',
        max_model_len=2048,
        num_gpu_blocks=100 * num_engines,
        block_size=16,
        engine_indexes=tuple(range(num_engines)),
        plugins=(PluginRecord("scheduler", "batching", "a:B", "my-dist", "1.0"),),
    )


class StatLoggerContract:
    """Subclass in a test module and name the `stat_logger`; `options` are its own, `config` fields of EngineConfig.

    `record_timeout_s`: time limit of a call of `record`.
    """

    stat_logger: ClassVar[str | type[StatLogger] | None] = None
    options: ClassVar[dict[str, Any]] = {}
    config: ClassVar[dict[str, Any]] = {}
    record_timeout_s: ClassVar[float] = 10.0
    effort: ClassVar[float] = 1.0
    phases: ClassVar[Sequence[Phase]] = PHASES

    def build(self) -> StatLogger:
        """Build a fresh logger like the kernel."""
        config = EngineConfig(model="fake", **self.config)
        cls, options, name = resolve_target("stat_logger", self.stat_logger, self.options, config)
        logger: StatLogger = cls(StatLoggerContext(config, options=options, plugin_name=name))
        return logger

    def _search(self, strategy: st.SearchStrategy[Any], check: Any) -> None:
        search(strategy, check, max(1, round(30 * self.effort)), self.phases)

    def test_a_record_may_hold_nothing(self) -> None:
        """Zeros everywhere, no parts, an interval without records."""
        logger = self.build()
        logger.log_engine_initialized(engine_info())
        for scheduler, iteration in (
            (None, None),
            (SchedulerStats(), None),
            (None, IterationStats()),
        ):
            logger.record(
                StatRecord(engine_index=0, time=0.0, scheduler=scheduler, iteration=iteration)
            )
            logger.log()
        for _ in range(2):  # at the same time as the one before
            logger.record(
                StatRecord(
                    engine_index=0,
                    time=1.0,
                    scheduler=SchedulerStats(num_running=1),
                    iteration=IterationStats(num_generation_tokens=1),
                )
            )
        logger.log()
        logger.shutdown()

    def test_any_record_is_accepted(self) -> None:
        """Missing parts, huge numbers, not-a-number, unknown tags and extras, unannounced engines."""

        def deliver(many: list[StatRecord]) -> None:
            logger = self.build()
            logger.log_engine_initialized(engine_info())
            for record in many:
                logger.record(record)
                logger.log()
            logger.shutdown()

        self._search(st.lists(records(), max_size=6), deliver)

    def test_records_are_not_changed(self) -> None:
        """Several loggers receive the same record."""

        def deliver(record: StatRecord) -> None:
            logger = self.build()
            logger.log_engine_initialized(engine_info(3))
            before = msgspec.msgpack.encode(record)
            logger.record(record)
            assert msgspec.msgpack.encode(record) == before
            logger.shutdown()

        self._search(records(), deliver)

    def test_calls_may_come_in_any_order(self) -> None:
        """Records before the engines are ready, idle intervals, sleeping, rejections, a changed number of engines."""
        calls = st.sampled_from(("record", "ready", "log", "sleep", "wake", *REJECTIONS))

        def happen(order: list[str]) -> None:
            logger = self.build()
            for number, call in enumerate(order):
                if call == "record":
                    logger.record(
                        StatRecord(
                            engine_index=number % 3, time=float(number), scheduler=SchedulerStats()
                        )
                    )
                elif call == "ready":
                    logger.log_engine_initialized(engine_info(1 + number % 4))
                elif call == "log":
                    logger.log()
                elif call in {"sleep", "wake"}:
                    logger.record_sleep_state(call == "sleep", 1 if call == "sleep" else 0)
                else:
                    logger.record_rejection(call)
            logger.shutdown()

        self._search(st.lists(calls, max_size=20), happen)

    def test_calls_come_from_another_thread(self) -> None:
        """A logger is built in the main thread; all other calls come from one other thread."""
        logger = self.build()

        def live() -> None:
            logger.log_engine_initialized(engine_info())
            logger.record(StatRecord(engine_index=0, time=1.0, scheduler=SchedulerStats()))
            logger.log()
            logger.shutdown()

        with ThreadPoolExecutor(1) as pool:
            pool.submit(live).result()

    def test_records_are_taken_without_waiting(self) -> None:
        """`record` returns without waiting for `log`, for any number of records in between."""
        logger = self.build()
        logger.log_engine_initialized(engine_info())
        num_recorded = 0

        def record() -> None:
            nonlocal num_recorded
            for number in range(MANY_RECORDS):
                logger.record(
                    StatRecord(engine_index=0, time=float(number), scheduler=SchedulerStats())
                )
                num_recorded += 1

        thread = threading.Thread(target=record, daemon=True)
        thread.start()
        thread.join(self.record_timeout_s)
        assert num_recorded == MANY_RECORDS, (
            f"record() has not returned from record {num_recorded + 1} in {self.record_timeout_s:g} s; drop records, "
            "or hand them to a thread, rather than wait"
        )
        logger.log()
        logger.shutdown()

    def test_two_can_live_in_one_process(self) -> None:
        """A second engine in the same process has its own logger; so has the next test."""
        first = self.build()
        second = self.build()
        for logger in (first, second):
            logger.log_engine_initialized(engine_info())
            logger.record(
                StatRecord(engine_index=0, time=1.0, scheduler=SchedulerStats(num_running=1))
            )
        first.shutdown()
        second.record(
            StatRecord(engine_index=0, time=2.0, iteration=IterationStats(num_generation_tokens=3))
        )
        second.log()
        second.shutdown()

    def test_it_does_not_keep_the_process_alive(self) -> None:
        """Its threads, if any, are daemons or end with shutdown; its interval is positive."""
        before = set(threading.enumerate())
        logger = self.build()
        logger.log_engine_initialized(engine_info())
        assert logger.interval_s > 0
        logger.shutdown()
        left = [
            thread for thread in threading.enumerate() if thread not in before and not thread.daemon
        ]
        for thread in left:
            thread.join(5.0)
        assert not [thread for thread in left if thread.is_alive()]
