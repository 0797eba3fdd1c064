from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from tenonry.client.llm import LLM
from tenonry.config import EngineConfig
from tenonry.config.sources import make_config
from tenonry.engine.kv_plan import plan_kv_cache
from tenonry.errors import ConfigError, PluginError, Unsupported
from tenonry.info import ModelInfo
from tenonry.interfaces.worker import WorkerContext
from tenonry.sampling_params import SamplingParams
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_bench import null_worker
from tenonry_bench.null_worker import NullWorker, NullWorkerOptions, TimedFuture

CONFIG = EngineConfig(model="none", max_num_seqs=8)


def make_worker(vocab_size: int = 5000, **options) -> NullWorker:
    model = ModelInfo(
        name="none", path="", architecture="None", max_model_len=64, vocab_size=vocab_size
    )
    return NullWorker(
        WorkerContext(CONFIG, model, max_model_len=64, options=NullWorkerOptions(**options))
    )


def make_step(rows: list[int], samples: list[bool], step_id: int = 3) -> SchedulerOutput:
    return SchedulerOutput(
        step_id=step_id,
        row=np.array(rows, np.int32),
        num_tokens=np.ones(len(rows), np.int32),
        samples=np.array(samples, np.bool_),
    )


def test_one_token_per_sampling_row():
    result = make_worker().execute_model(make_step([5, 2, 7], [True, False, True]))
    assert isinstance(result, ModelRunnerOutput)
    assert result.step_id == 3
    assert result.row.tolist() == [5, 7]
    assert result.offsets.tolist() == [0, 1, 2]
    assert result.token_ids.tolist() == [1000, 1000]
    assert result.row.dtype == result.offsets.dtype == result.token_ids.dtype == np.int32


def test_an_empty_step_is_answered():
    result = make_worker().execute_model(make_step([], []))
    assert len(result.row) == 0
    assert len(result.token_ids) == 0
    assert result.offsets.tolist() == [0]


def test_results_cannot_be_changed_by_who_gets_them():
    result = make_worker().execute_model(make_step([1], [True]))
    with pytest.raises(ValueError, match="read-only"):
        result.token_ids[0] = 5


@pytest.mark.parametrize(("vocab_size", "expected"), [(8192, 1000), (1001, 500), (2, 1)])
def test_the_default_token_is_in_the_vocabulary(vocab_size, expected):
    result = make_worker(vocab_size).execute_model(make_step([0], [True]))
    assert result.token_ids.tolist() == [expected]


def test_a_token_outside_the_vocabulary_is_refused():
    assert make_worker(50, token_id=49).execute_model(
        make_step([0], [True])
    ).token_ids.tolist() == [49]
    with pytest.raises(ConfigError, match="token_id=50 is outside the vocabulary: 0 to 49"):
        make_worker(50, token_id=50)


@pytest.mark.parametrize(
    "options", [{"steps_in_flight": 4}, {"step_ms": -1}, {"token_id": -1}, {"unknown": 1}]
)
def test_bad_options_are_refused(options):
    with pytest.raises(ValidationError):
        NullWorkerOptions(**options)


def test_it_needs_no_kv_memory_and_gets_all_blocks_that_can_be_used():
    worker = make_worker()
    planned = plan_kv_cache([worker.kv_cache_groups()], [worker.available_memory()], CONFIG, 64)
    assert planned.num_blocks == 8 * 64 // planned.block_size


def test_it_declares_no_calls():
    with pytest.raises(Unsupported, match="NullWorker does not support 'sleep'"):
        make_worker().call("sleep")


class FakeTime:
    """A clock that advances only in `sleep`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_step_that_takes_time_resolves_at_its_moment(monkeypatch):
    clock = FakeTime()
    monkeypatch.setattr(null_worker, "time", clock)
    worker = make_worker(step_ms=20, steps_in_flight=2)
    first, second = (worker.execute_model(make_step([0], [True], step_id)) for step_id in (0, 1))
    assert not first.done()
    with pytest.raises(TimeoutError, match=r"needs 0\.040 s more; the caller waits 0\.010 s"):
        second.result(timeout=0.01)
    assert clock.now == pytest.approx(100.01)
    assert first.result().step_id == 0
    assert clock.now == pytest.approx(100.02)
    assert first.done()
    assert not second.done()
    assert second.result(timeout=10).step_id == 1
    assert clock.now == pytest.approx(
        100.04
    )  # steps queue on the pretended device, they do not overlap
    clock.now = 200.0
    worker.execute_model(make_step([0], [True])).result()
    assert clock.now == pytest.approx(200.02)  # and an idle device starts immediately


def test_a_moment_that_has_passed_costs_no_wait():
    result = make_worker().execute_model(make_step([0], [True]))
    assert TimedFuture(result, 0.0).done()
    assert TimedFuture(result, 0.0).result(timeout=0.0) is result


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("scheduler", ["batching", "static"])
def test_an_engine_gets_exactly_the_tokens_it_asks_for(model_folder, scheduler, depth):
    """Chunked prefill, more requests than rows, several steps in flight, the scheduler's validator on."""
    config = make_config(
        {
            "model": str(model_folder),
            "scheduler": scheduler,
            "worker": {
                "name": "null",
                "options": {"token_id": 7, "steps_in_flight": depth, "step_ms": 0.2},
            },
            "max_num_seqs": 4,
            "max_num_batched_tokens": 16,
            "block_size": 4,
        }
    )
    lengths = [1, 5, 9, 2, 7, 3]
    params = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths
    ]
    prompts = [
        {"prompt_token_ids": list(range(10, 15 + 3 * index))} for index in range(len(lengths))
    ]
    with LLM(config=config) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == [
        [7] * length for length in lengths
    ]
    assert all(output.outputs[0].finish_reason == "length" for output in outputs)


def test_an_end_token_ends_a_request(model_folder):
    config = make_config(
        {"model": str(model_folder), "worker": {"name": "null", "options": {"token_id": 2}}}
    )
    with LLM(config=config) as llm:
        output = llm.generate(
            {"prompt_token_ids": [5]}, SamplingParams(max_tokens=9), use_tqdm=False
        )[0].outputs[0]
    assert output.finish_reason == "stop"
    assert len(output.token_ids) == 1


def test_an_unknown_option_names_the_known_ones(model_folder):
    config = make_config(
        {"model": str(model_folder), "worker": {"name": "null", "options": {"tokenid": 2}}}
    )
    with pytest.raises(
        PluginError, match=r"tokenid.*known options: token_id, step_ms, steps_in_flight"
    ):
        LLM(config=config)
