"""KV transfers of several ranks: done when all ranks report it, failed when one does, each reported once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tenonry.step import SchedulerOutput
from tenonry_testkit.fakes import TokenModel
from tenonry_testkit.kernel.engine import Inbox, make_core, request

pytestmark = pytest.mark.usefixtures("forked_children")

CONNECTOR = f"{Path(__file__).with_name('rank_connector.py')}:RankConnector"
PROMPT = list(range(5, 18))
FULL_BLOCKS = 3
LAYOUTS = {
    "tensor": {"tensor_parallel_size": 2},
    "pipeline": {"pipeline_parallel_size": 2},
    "both": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
}


class Engine:
    """An engine core over ranks of the fake worker, and the transfers seen by its `update_from_output`."""

    def __init__(self, layout, options):
        self.core = make_core(
            executor="mp",
            scheduler="tenonry_testkit.worker:CachingScheduler",
            kv_connector={"name": CONNECTOR, "options": options},
            block_size=4,
            num_gpu_blocks_override=24,
            enable_prefix_caching=False,
            **LAYOUTS[layout],
        )
        self.done = []
        self.failed = []
        update = self.core.scheduler.update_from_output

        def noted(output, result):
            self.done += result.transfers_done
            self.failed += result.transfers_failed
            return update(output, result)

        self.core.scheduler.update_from_output = noted

    def run(self, handle):
        """The tokens of one request with the prompt that all have, and how many of it were found."""
        source = request(handle, PROMPT)
        assert self.core.add_request(source) is None
        inbox = Inbox().run(self.core)
        blocks = self.core.scheduler.blocks
        assert blocks.num_free == blocks.num_total
        return inbox.tokens[handle], inbox.scheduled[handle].num_cached_tokens


@pytest.fixture
def start(request):
    """`start(layout, **options)`: an engine with that connector; its store is this test's own."""
    engines = []

    def run(layout="tensor", **options):
        engines.append(Engine(layout, {"store": request.node.name, **options}))
        return engines[-1]

    yield run
    for engine in engines:
        engine.core.shutdown()


def tokens():
    return TokenModel(512).complete(PROMPT, request(1).sampling_params, max_model_len=64).token_ids


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_all_ranks_saved_is_loaded_by_all(start, layout, asynchronous):
    engine = start(layout, asynchronous=asynchronous)
    assert engine.run(1) == (tokens(), 0)
    assert engine.done == [1]
    assert engine.run(2) == (tokens(), FULL_BLOCKS * 4)
    assert engine.done == ([1, 2] if asynchronous else [1])
    assert engine.failed == []


@pytest.mark.parametrize("bad_rank", [0, 1])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_load_that_fails_on_one_rank_has_failed(start, asynchronous, bad_rank):
    engine = start(asynchronous=asynchronous, fail_loads=1, bad_rank=bad_rank)
    engine.run(1)
    assert engine.run(2)[0] == tokens()
    assert engine.failed == [2]
    assert engine.run(3) == (tokens(), FULL_BLOCKS * 4)
    assert engine.failed == [2]


@pytest.mark.parametrize("late_rank", [0, 1])
@pytest.mark.parametrize("fail_loads", [0, 1])
def test_a_load_is_reported_once_when_the_last_rank_has_ended_it(start, late_rank, fail_loads):
    engine = start(
        asynchronous=True, late_rank=late_rank, late_polls=5, fail_loads=fail_loads, bad_rank=1
    )
    engine.run(1)
    assert engine.run(2)[0] == tokens()
    assert engine.done == ([1] if fail_loads else [1, 2])
    assert engine.failed == ([2] if fail_loads else [])


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_a_load_that_fails_is_reported_although_its_row_leaves_in_a_step_in_flight(
    start, first_step, bad_rank
):
    """As when the request is aborted or preempted before the result of the step is read."""
    executor = start(fail_loads=1, bad_rank=bad_rank).core.executor
    loading = first_step()
    loading.connector_metadata = {"load": [[1, []]], "save": []}
    leaving = SchedulerOutput(step_id=1, gone=np.array([0], np.int32))
    futures = [executor.execute_model(output) for output in (loading, leaving)]
    results = [future.result(10) for future in futures]
    assert [result.transfers_failed for result in results] == [[1], []]
