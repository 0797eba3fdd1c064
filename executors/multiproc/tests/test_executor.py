"""The executor in good health: calls, steps in flight, large messages, the ranks' surroundings (WK-2, 4, 12, 13)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tenonry.errors import ConfigError
from tenonry.interfaces.executor import ExecutorContext
from tenonry.step import SchedulerOutput
from tenonry_executor_multiproc import broadcast, machine
from tenonry_executor_multiproc.executor import MultiprocExecutor

pytestmark = pytest.mark.integration


def test_several_steps_are_in_flight_and_answered_in_order(forked_children, build, first_step):
    """EC-10: a worker with asynchronous results has several steps in flight."""
    executor = build({"steps_in_flight": 3, "later_s": 0.02}).start()
    assert executor.max_concurrent_batches == 3
    futures = [executor.execute_model(first_step(step_id=step_id)) for step_id in range(12)]
    assert not futures[-1].done()
    assert futures[-1].result(10).step_id == 11
    assert all(future.done() for future in futures)
    assert [future.result().step_id for future in futures] == list(range(12))


def test_one_step_at_a_time_without_async_scheduling(forked_children, build):
    executor = build({"steps_in_flight": 3}, async_scheduling=False).start()
    assert executor.max_concurrent_batches == 1


def test_the_last_stage_answers(build):
    """Rank 2 of 4 is the first of the second stage; no row may wait for a token of its own."""
    built = build(pipeline_parallel_size=2, tensor_parallel_size=2)
    assert built.executor._driver == 2
    assert not built.executor.feeds_back_tokens
    assert build(tensor_parallel_size=2).executor.feeds_back_tokens


@pytest.mark.parametrize("shared_memory", [True, False])
def test_messages_of_any_size_arrive(
    forked_children, build, first_step, monkeypatch, shared_memory
):
    """A prompt of 100 000 tokens in a step, a call of some megabytes and its answers; small ones before and after."""
    if not shared_memory:
        monkeypatch.setattr(broadcast, "has_shared_memory", lambda: False)
    executor = build({"counts_tokens": True}, max_model_len=120_000).start()
    for length in (3, 100_000, 5_000, 4):
        result = executor.execute_model(first_step(*range(length))).result(10)
        assert result.token_ids.tolist() == [length * (length - 1) // 2 % 2**31]
    text = "word " * 500_000
    assert executor.call("echo", [text], 20) == [[0, text], [1, text]]


def test_without_memfd_the_ranks_meet_in_a_file_of_a_private_folder(build, monkeypatch):
    monkeypatch.delattr(machine.os, "memfd_create")
    built = build()
    executor = built.start()
    rendezvous = executor.call("about")[0][3]
    assert rendezvous.startswith("file://")
    assert rendezvous.endswith("/rendezvous")
    assert executor._rendezvous is not None
    assert not Path(rendezvous.removeprefix("file://")).parent.exists()


def test_the_ranks_meet_in_a_file_without_a_name(healthy):
    """Each opens it anew, locks it, and reads the other's writes: the requirements of torch's file store."""
    assert healthy.call("meet", [], 20) == [2, 2]
    paths = {about[3] for about in healthy.call("about")}
    assert len(paths) == 1
    assert paths.pop().startswith("file:///proc/self/fd/")


def test_a_single_rank_meets_nobody_and_keeps_its_threads(build, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    executor = build(tensor_parallel_size=1).start()
    [(_, threads, local_rank, rendezvous)] = executor.call("about")
    assert (threads, local_rank, rendezvous) == (None, 0, "")
    assert executor.execute_model(SchedulerOutput(step_id=4)).result(10).step_id == 4


def test_cores_are_shared_out_unless_the_user_did(build, monkeypatch, caplog):
    """WK-13."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine, "usable_cores", lambda: 9)
    assert [about[1] for about in build().start().call("about")] == ["4", "4"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert build().executor._environment() == {}


def test_what_ranks_write_says_who_wrote_it(build, capfd):
    """WK-12: the log as well, with several lines per write and lines in pieces."""
    built = build()
    executor, pids = built.start(), built.pids
    for text in ("one\ntwo\nthr", "ee\n", ""):
        executor.call("say", [text])
    with pytest.raises(TypeError):
        executor.call("profile", [1, 2, 3])
    executor.shutdown()
    out, err = capfd.readouterr()
    for rank, pid in enumerate(pids):
        mark = f"(worker 0.{rank} pid={pid}) "
        assert [line for line in out.splitlines() if line.startswith(mark)] == [
            mark + word for word in ("one", "two", "three")
        ]
        assert f"{mark}E " in err
    assert all(line.startswith("(worker 0.") for line in (out + err).splitlines())


def test_a_connector_that_is_built_cannot_be_sent(build):
    context: ExecutorContext = build().executor.context
    context.kv_connector = object()
    with pytest.raises(ConfigError, match="use --executor uni"):
        MultiprocExecutor(context)


def test_arrays_of_a_call_arrive_as_lists(healthy):
    assert healthy.call("echo", [np.arange(3)])[1] == [1, [0, 1, 2]]
