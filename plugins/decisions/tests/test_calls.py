"""The call set: records of engines that run, and of none that does not record."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest

from tenonry.errors import ConfigError, PluginFault, Unsupported
from tenonry.interfaces.call_set import FrontEnd
from tenonry.interfaces.plugin import PluginContext
from tenonry.messages import EngineCoreRequest
from tenonry.sampling_params import SamplingParams
from tenonry_decisions.calls import DecisionCalls
from tenonry_decisions.frames import runs, unpack
from tenonry_decisions.observed import ObservedScheduler
from tenonry_decisions.recording import recordings
from tenonry_decisions.settings import log_of
from tenonry_testkit.call_set import CallSetContract, Engines
from tenonry_testkit.kernel.engine import make_core


class TestDecisionCalls(CallSetContract):
    call_set = DecisionCalls


def front_end(**settings):
    """A front-end half over engines with these settings."""
    engines = Engines("decisions", **settings)
    context = FrontEnd(None, engines, lambda *_: None, set())
    config = engines.engines[0].methods["request_counts"].__self__.config
    return DecisionCalls(PluginContext(config)).front_end_half(context)


def test_a_front_end_gets_the_records_of_every_engine():
    found = asyncio.run(front_end(decision_steps=8).records())
    assert [[header.engine for header, _ in runs(unpack(part))] for part in found] == [[0], [1]]


def test_without_records_the_remedy_is_named():
    with pytest.raises(Unsupported, match="start with --decision-steps N"):
        asyncio.run(front_end().records())


def half(core):
    """The engine half, as the engine builds it."""
    return DecisionCalls(PluginContext(core.config)).engine_half(core)


def answer(core, number: int = 3) -> None:
    for handle in range(1, number + 1):
        core.add_request(
            EngineCoreRequest(
                handle=handle,
                request_id=f"r{handle}",
                prompt_token_ids=np.arange(4, dtype=np.int32),
                sampling_params=SamplingParams(temperature=0, max_tokens=4),
            )
        )
    while core.has_work():
        core.step()


def test_nothing_is_observed_by_default():
    core = make_core()
    scheduler = core.scheduler
    assert half(core) is None
    assert core.scheduler is scheduler


def test_file_and_memory_have_the_same_records(tmp_path):
    path = tmp_path / "new" / "decisions"
    core = make_core(index=2, decision_log=str(path), decision_steps=100)
    kept = half(core)
    answer(core)
    [memory] = recordings([kept.decision_records()])
    core.shutdown()
    [file] = recordings([log_of(str(path), 2).read_bytes()])
    for found in (memory, file):
        assert [track.label for track in found.tracks] == ["r1", "r2", "r3"]
        assert all(track.end is not None for track in found.tracks)
        assert found.header.engine == 2


def test_a_replacement_records_beside_the_engine_that_it_replaces(tmp_path):
    path = tmp_path / "decisions"
    old, new = (make_core(decision_log=str(path)) for _ in range(2))
    kept = half(old)
    answer(old, 1)
    kept.decision_records()  # writes what is recorded
    half(new)
    answer(new, 2)
    new.shutdown()
    answer(old, 3)
    old.shutdown()
    found = recordings([path.read_bytes()])
    assert [len(each.tracks) for each in found] == [4, 2]
    assert [each.first for each in found] == [0, 0]


def test_a_standby_records_as_the_engine_that_it_becomes(tmp_path):
    path = tmp_path / "decisions"
    core = make_core(decision_log=str(path), decision_steps=100)
    kept = half(core)
    core.index = 1
    answer(core)
    [memory] = recordings([kept.decision_records()])
    core.shutdown()
    assert path.read_bytes() == b""
    [file] = recordings([log_of(str(path), 1).read_bytes()])
    assert file.header.engine == memory.header.engine == 1
    assert file.header.run == memory.header.run > 0


def test_an_idle_engine_writes_nothing(tmp_path):
    path = tmp_path / "decisions"
    core = make_core(decision_log=str(path))
    half(core)
    core.shutdown()
    assert path.read_bytes() == b""


def test_a_fault_still_names_the_scheduler():
    core = make_core(decision_steps=8)
    scheduler = core.scheduler
    half(core)
    assert isinstance(core.scheduler, ObservedScheduler)
    scheduler.schedule = lambda: 1 / 0
    with pytest.raises(PluginFault, match=core.plan.get("scheduler").name):
        answer(core)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    core = make_core(decision_log=str(tmp_path))
    with pytest.raises(
        ConfigError, match=f"decision_log={tmp_path} cannot be written: .*; name another"
    ):
        half(core)
    core.shutdown()


def test_a_file_that_is_lost_ends_the_record_and_nothing_else(tmp_path, caplog):
    path = tmp_path / "folder" / "decisions"
    core = make_core(decision_log=str(path))
    half(core)
    path.unlink()
    path.parent.rmdir()
    with caplog.at_level(logging.ERROR, "tenonry.decisions"):
        answer(core)
        core.shutdown()
    assert "disabled the decision record of scheduler" in caplog.text
    assert "raised FileNotFoundError" in caplog.text
