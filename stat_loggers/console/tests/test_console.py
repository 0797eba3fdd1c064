"""The console stat logger: the contents of its line, when there is one, and that it counts everything once."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tenonry.config import EngineConfig, PluginChoice
from tenonry.info import EngineInfo
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.plugin.checks import load_options
from tenonry.plugin.manager import PluginManager
from tenonry.plugin.plan import load_class
from tenonry.stats import IterationStats, SchedulerStats, StatRecord
from tenonry_stat_logger_console import ConsoleOptions, ConsoleStatLogger

CONFIG = EngineConfig(model="demo")


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Lines(logging.Handler):
    """Collects the logger's records, alongside other handlers."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert record.levelno == logging.INFO
        self.texts.append(record.getMessage())


class LoggerDriver:
    """One console logger on a clock of its own; `tick` advances it and returns that interval's lines."""

    def __init__(self, **options) -> None:
        self.clock = FakeClock()
        self.lines = Lines()
        self.console = ConsoleStatLogger(
            StatLoggerContext(CONFIG, options=ConsoleOptions(**options)), self.clock
        )

    def feed(self, engine=0, scheduler=None, **iteration) -> None:
        stats = IterationStats(**iteration) if iteration else None
        self.console.record(
            StatRecord(
                engine_index=engine, time=self.clock.now, scheduler=scheduler, iteration=stats
            )
        )

    def tick(self, seconds=5.0) -> list[str]:
        self.clock.now += seconds
        target = logging.getLogger("tenonry.stats")
        before, self.lines.texts = target.level, []
        target.addHandler(self.lines)
        target.setLevel(logging.INFO)
        try:
            self.console.log()
        finally:
            target.removeHandler(self.lines)
            target.setLevel(before)
        return self.lines.texts


def info(*indexes: int) -> EngineInfo:
    return EngineInfo(
        model="demo",
        served_model_name="demo",
        max_model_len=64,
        num_gpu_blocks=8,
        block_size=16,
        engine_indexes=indexes,
    )


class TestLine:
    def test_line_shows_all_numbers(self):
        """SL-1."""
        driver = LoggerDriver()
        driver.feed(num_prompt_tokens=3000, num_generation_tokens=250)
        driver.feed(num_prompt_tokens=1060, num_generation_tokens=7430)
        driver.feed(
            scheduler=SchedulerStats(
                num_running=48,
                num_waiting=3,
                kv_cache_usage=0.612,
                prefix_cache_queries=500,
                prefix_cache_hits=392,
                num_preemptions=2,
                num_drafts=40,
                num_draft_tokens=160,
                num_accepted_tokens=90,
                extra={"lookahead": 0.25},
            )
        )
        (line,) = driver.tick()
        assert line == (
            "prompt 812 tok/s, generation 1536 tok/s, running 48, waiting 3, KV cache 61.2 %, "
            "prefix cache hits 78.4 %, preempted 2, draft tokens accepted 56.2 %, mean acceptance length 3.25, "
            "lookahead 0.25"
        )

    def test_line_leaves_out_what_did_not_happen(self):
        driver = LoggerDriver()
        driver.feed(num_generation_tokens=10, scheduler=SchedulerStats(num_running=1))
        assert driver.tick() == [
            "prompt 0.0 tok/s, generation 2.0 tok/s, running 1, waiting 0, KV cache 0.0 %"
        ]

    def test_interval_counts_only_its_own_events(self):
        driver = LoggerDriver()
        state = SchedulerStats(
            num_running=1, prefix_cache_queries=10, prefix_cache_hits=5, num_preemptions=1
        )
        driver.feed(scheduler=state, num_generation_tokens=50)
        driver.feed(scheduler=state)
        assert "prefix cache hits 50.0 %, preempted 2" in driver.tick()[0]
        driver.feed(scheduler=SchedulerStats(num_running=1), num_generation_tokens=5)
        assert driver.tick() == [
            "prompt 0.0 tok/s, generation 1.0 tok/s, running 1, waiting 0, KV cache 0.0 %"
        ]

    def test_many_extras_are_cut(self):
        driver = LoggerDriver()
        driver.feed(
            scheduler=SchedulerStats(num_running=1, extra={f"n{i:02}": float(i) for i in range(11)})
        )
        line = driver.tick()[0]
        assert "n07 7" in line
        assert "n08" not in line
        assert line.endswith("and 3 more")

    def test_rate_covers_the_time_that_passed(self):
        driver = LoggerDriver()
        driver.feed(num_generation_tokens=30)
        assert "generation 3.0 tok/s" in driver.tick(10.0)[0]

    def test_first_interval_starts_when_engines_are_ready(self):
        driver = LoggerDriver()
        driver.clock.now += 300
        driver.console.log_engine_initialized(info(0))
        driver.feed(num_generation_tokens=10)
        assert "generation 2.0 tok/s" in driver.tick()[0]

    def test_log_twice_at_the_same_instant_does_not_divide_by_zero(self):
        driver = LoggerDriver()
        driver.feed(num_generation_tokens=1)
        assert len(driver.tick(0.0)) == 1
        assert driver.tick(0.0) == []


class TestIdle:
    def test_no_line_before_any_work(self):
        driver = LoggerDriver()
        driver.console.log_engine_initialized(info(0))
        assert driver.tick() == []

    def test_one_last_line_when_work_ended_then_none(self):
        driver = LoggerDriver()
        driver.feed(num_generation_tokens=5, scheduler=SchedulerStats(num_running=0))
        assert len(driver.tick()) == 1
        assert driver.tick() == []
        assert driver.tick() == []

    def test_requests_that_do_not_move_are_shown(self):
        driver = LoggerDriver()
        driver.feed(scheduler=SchedulerStats(num_waiting=4))
        assert "generation 0.0 tok/s, running 0, waiting 4" in driver.tick()[0]
        assert "waiting 4" in driver.tick()[0]

    def test_rejections_are_shown_once_even_when_idle(self):
        driver = LoggerDriver()
        for reason in ("queue_full", "invalid", "queue_full"):
            driver.console.record_rejection(reason)
        assert driver.tick() == ["rejected 3 (invalid 1, queue_full 2)"]
        assert driver.tick() == []

    def test_rejections_join_the_line(self):
        driver = LoggerDriver()
        driver.feed(num_generation_tokens=5)
        driver.console.record_rejection("draining")
        (line,) = driver.tick()
        assert line.endswith("KV cache 0.0 %, rejected 1 (draining 1)")


class TestEngines:
    """SL-1: aggregated, or per engine."""

    def feed_two(self, driver: LoggerDriver) -> None:
        driver.console.log_engine_initialized(info(0, 1))
        first = SchedulerStats(num_running=3, kv_cache_usage=0.5, extra={"x": 1.0})
        second = SchedulerStats(num_running=1, num_waiting=2, kv_cache_usage=0.1, extra={"x": 3.0})
        driver.feed(0, first, num_generation_tokens=20)
        driver.feed(1, second, num_generation_tokens=10)

    def test_engines_are_summed_by_default(self):
        driver = LoggerDriver()
        self.feed_two(driver)
        assert driver.tick() == [
            "prompt 0.0 tok/s, generation 6.0 tok/s, running 4, waiting 2, KV cache 30.0 %, x 2"
        ]

    def test_per_engine_gives_a_line_to_each_busy_engine(self):
        driver = LoggerDriver(per_engine=True)
        self.feed_two(driver)
        assert [line.partition(", running")[0] for line in driver.tick()] == [
            "engine 0: prompt 0.0 tok/s, generation 4.0 tok/s",
            "engine 1: prompt 0.0 tok/s, generation 2.0 tok/s",
        ]
        driver.feed(0, SchedulerStats())
        (line,) = driver.tick()
        assert line.startswith("engine 1: ")

    def test_per_engine_shows_rejections_on_a_line_of_their_own(self):
        driver = LoggerDriver(per_engine=True)
        driver.console.log_engine_initialized(info(0, 1))
        driver.console.record_rejection("invalid")
        assert driver.tick() == ["rejected 1 (invalid 1)"]

    def test_engine_that_is_gone_is_forgotten(self):
        driver = LoggerDriver()
        self.feed_two(driver)
        driver.tick()
        driver.console.log_engine_initialized(info(0))
        assert "running 3, waiting 0, KV cache 50.0 %" in driver.tick()[0]


class TestInterface:
    def test_options_are_bounded(self):
        assert ConsoleStatLogger.Options is ConsoleOptions
        for bad in ({"interval_s": 0}, {"interval_s": 3601}, {"intervall": 1}):
            with pytest.raises(ValidationError):
                ConsoleStatLogger.Options.model_validate(bad)

    def test_kernel_finds_it_by_name(self):
        (point,) = entry_points(group="tenonry.stat_loggers", name="console")
        choice = PluginChoice(name=point.value, options={"interval_s": "2.5"})
        entry = PluginManager(discover=False).resolve("stat_logger", choice, CONFIG)
        assert load_class(entry) is ConsoleStatLogger
        assert load_options(entry, ConsoleStatLogger) == ConsoleOptions(interval_s=2.5)

    def test_interval_is_what_the_kernel_reads(self):
        assert LoggerDriver(interval_s=0.5).console.interval_s == 0.5
        assert (
            ConsoleStatLogger(StatLoggerContext(CONFIG)).interval_s == StatLogger.interval_s == 5.0
        )

    def test_sleep_state_is_announced(self, caplog):
        console = LoggerDriver().console
        with caplog.at_level(logging.INFO, logger="tenonry.stats"):
            console.record_sleep_state(sleeping=True, level=2)
            console.record_sleep_state(sleeping=False, level=0)
        assert caplog.messages == ["engines asleep (level 2)", "engines awake"]

    @pytest.mark.integration
    def test_module_is_light(self):
        code = "import sys, tenonry_stat_logger_console; print(*(m.partition('.')[0] for m in sys.modules))"
        command = [sys.executable, "-P", "-c", code]
        loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        assert "tenonry_stat_logger_console" in loaded
        assert not {"torch", "transformers", "fastapi", "uvicorn", "numpy"} & set(loaded)


counts = st.integers(0, 10**6)
record = st.tuples(st.integers(0, 2), counts, counts)


@given(st.lists(st.lists(record, max_size=5), max_size=6))
def test_every_token_is_in_exactly_one_line(intervals):
    """With intervals of a second, the printed rates are counts: their sum over all lines equals the input."""
    driver = LoggerDriver()
    for interval in intervals:
        for engine, prompt, generation in interval:
            driver.feed(engine, num_prompt_tokens=prompt, num_generation_tokens=generation)
        lines = driver.tick(1.0)
        fed = [sum(column) for column in zip(*(counts[1:] for counts in interval), strict=True)]
        printed = [[int(float(n)) for n in re.findall(r"([\d.]+) tok/s", line)] for line in lines]
        assert printed == ([fed] if any(fed) else [])
