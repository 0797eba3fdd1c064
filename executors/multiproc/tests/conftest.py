from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tenonry.config import EngineConfig, PluginChoice
from tenonry.interfaces.executor import ExecutorContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup
from tenonry.plugin.checks import load_options
from tenonry.plugin.manager import qualified_record
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput
from tenonry_executor_multiproc.executor import MultiprocExecutor
from tenonry_testkit.fakes.model import fake_model

WORKER = f"{Path(__file__).with_name('rank_worker.py')}:RankWorker"
KV_CACHE = KVCacheConfig(
    num_blocks=30, block_size=4, groups=(KVCacheGroup(layers=("layer.0",)),), max_model_len=32
)


class Built:
    """An executor, and the failures it reports."""

    def __init__(self, config: dict[str, Any], worker: dict[str, Any]) -> None:
        entry = qualified_record(
            "worker", PluginChoice(name=WORKER, options={"vocab_size": 64, **worker})
        )
        cls: Any = load_class(entry)
        settings = {"tensor_parallel_size": 2, "max_num_seqs": 4, "max_model_len": 32, **config}
        self.executor = MultiprocExecutor(
            ExecutorContext(
                EngineConfig(model="fake", **settings),
                fake_model(vocab_size=64),
                max_model_len=settings["max_model_len"],
                worker_class=cls,
                worker_options=load_options(entry, cls),
                plan_text=PluginPlan((entry,)).encode(),
            )
        )
        self.reasons: list[str] = []
        self.executor.on_failure(self.reasons.append)

    def start(self) -> MultiprocExecutor:
        self.executor.start()
        self.executor.initialize(KV_CACHE)
        return self.executor

    @property
    def pids(self) -> list[int]:
        return list(self.executor.ranks._supervisor.pids().values())


@pytest.fixture
def build():
    """`build(worker={…}, **config)`: an executor with two ranks that is shut down at the end."""
    built = []

    def make(worker: dict[str, Any] | None = None, **config: Any) -> Built:
        built.append(Built(config, worker or {}))
        return built[-1]

    yield make
    for one in built:
        one.executor.shutdown()


@pytest.fixture
def errors_logged(caplog, monkeypatch):
    """Texts that the executor logs as errors; the kernel's logging may be configured not to propagate."""
    monkeypatch.setattr(logging.getLogger("tenonry"), "propagate", True)
    return lambda: [
        record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR
    ]


@pytest.fixture
def first_step():
    """`first_step(*prompt)`: step 0 with one new row."""

    def make(*prompt: int, step_id: int = 0) -> SchedulerOutput:
        new = NewRow(
            row=0,
            handle=1,
            token_ids=np.array(prompt or (1, 2, 3), np.int32),
            num_computed=0,
            num_output=0,
            block_ids=(np.zeros(1, np.int32),),
            sampling=SamplingParams(temperature=0.0),
        )
        length = len(new.token_ids)
        return SchedulerOutput(
            step_id=step_id,
            new=[new],
            row=np.zeros(1, np.int32),
            num_tokens=np.array([length], np.int32),
            next_token=np.array([-1], np.int32),
            samples=np.ones(1, np.bool_),
            generation=np.zeros(1, np.int32),
            total_tokens=length,
        )

    return make


@pytest.fixture(scope="module")
def healthy():
    """An executor with two ranks for tests that do it no harm."""
    built = Built({}, {})
    yield built.start()
    built.executor.shutdown()
