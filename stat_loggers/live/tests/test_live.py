"""Views of `live`: numbers of an interval, and silence while idle."""

from __future__ import annotations

import io

import pytest

from tenonry import LLM, SamplingParams
from tenonry.config import EngineConfig
from tenonry.info import EngineInfo, PluginRecord
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.stats import FinishedRequestStats, IterationStats, SchedulerStats, StatRecord
from tenonry_stat_logger_live import LiveStatLogger, percentiles
from tenonry_testkit.plugins import fake_model_installed

PARTS = {
    "worker": "tenonry_testkit.fakes.worker:FakeWorker",
    "executor": "tenonry_testkit.fakes.executor:InstantExecutor",
    "io_processor": "tenonry_testkit.fakes.io_processor:ByteIOProcessor",
    "scheduler": "tenonry_testkit.fakes.scheduler:ReferenceScheduler",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
    "block_size": 4,
    "num_gpu_blocks_override": 20,
}


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


def logger(clock: Clock, output: io.StringIO) -> LiveStatLogger:
    made = LiveStatLogger(StatLoggerContext(EngineConfig(model="m")), clock, output)
    plugins = (PluginRecord("scheduler", "mine", "m:C", "acme", "2"),)
    facts = {"max_model_len": 9, "num_gpu_blocks": 9, "block_size": 9, "plugins": plugins}
    made.log_engine_initialized(EngineInfo(model="m", served_model_name="tiny", **facts))
    return made


def work(engine: int = 0) -> StatRecord:
    finished = FinishedRequestStats(
        request_id="1", finish_reason="stop", num_prompt_tokens=30, num_generation_tokens=10,
        e2e_latency_s=0.5, queued_s=0.004,
    )  # fmt: skip
    return StatRecord(
        engine_index=engine,
        time=0.0,
        scheduler=SchedulerStats(
            num_running=2, num_waiting=1, kv_cache_usage=0.25, prefix_cache_queries=8,
            prefix_cache_hits=4, num_preemptions=1,
        ),
        iteration=IterationStats(
            num_prompt_tokens=30, num_generation_tokens=10, ttft_s=[0.1],
            inter_token_latency_s=[0.01, 0.03], finished=[finished],
        ),
    )  # fmt: skip


def test_a_view_has_the_numbers_of_its_interval(clock):
    output = io.StringIO()
    made = logger(clock, output)
    for engine in (0, 1):
        made.record(work(engine))
    clock.now += 2.0
    made.log()
    assert output.getvalue() == (
        "last 2.0 s\n"
        "model        tiny\n"
        "requests     4 running, 2 waiting\n"
        "throughput   30.0 prompt and 10.0 output tokens/s, 1.00 requests/s\n"
        "KV cache     25% in use\n"
        "prefix hits  50%\n"
        "preemptions  2\n"
        "TTFT         p50 100.0 ms, p90 100.0 ms, p99 100.0 ms\n"
        "ITL          p50 30.0 ms, p90 30.0 ms, p99 30.0 ms\n"
        "end to end   p50 500.0 ms, p90 500.0 ms, p99 500.0 ms\n"
        "queue        p50 4.0 ms, p90 4.0 ms, p99 4.0 ms\n"
        "plugins      scheduler mine 2\n"
    )


def test_idle_intervals_are_silent_and_begin_anew(clock):
    output = io.StringIO()
    made = logger(clock, output)
    made.log()
    assert not output.getvalue()
    made.record(work())
    made.record(StatRecord(engine_index=0, time=0.0, scheduler=SchedulerStats()))
    made.log()
    assert "0 running" in output.getvalue()
    size = len(output.getvalue())
    made.log()
    assert len(output.getvalue()) == size


def test_a_view_on_a_terminal_clears_its_line_alone(clock):
    """A progress bar may stand there; earlier output stays."""
    output = Terminal()
    made = logger(clock, output)
    for _ in range(2):
        made.record(work())
        made.log()
    _, first, second = output.getvalue().split("\r\x1b[K")
    assert first.startswith("last ")
    assert second.startswith("last ")


def test_percentiles_of_few_values():
    assert percentiles([]) == {"p50": None, "p90": None, "p99": None}
    assert percentiles([3.0, 1.0, 2.0]) == {"p50": 2.0, "p90": 3.0, "p99": 3.0}


def test_offline_use_ends_with_a_view(capfd, tmp_path):
    with fake_model_installed(tmp_path), LLM("fake", stat_loggers=["live"], **PARTS) as llm:
        llm.generate(["Once"] * 3, SamplingParams(max_tokens=4))
    shown = capfd.readouterr().err
    assert "model        fake" in shown
    assert "TTFT         p50 " in shown
    assert "plugins      " in shown
