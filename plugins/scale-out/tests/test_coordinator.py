"""The coordinator's rules, without sockets (DP-4 to DP-10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry_scale_out.coordinator import Coordinator, CoordinatorState
from tenonry_scale_out.wave_messages import EngineLoad, LoadTable, WaveStart, WaveSync, WaveVerdict


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"\x91\xa2\xdbx", b"\x91" * 100_000, b"\x93\xa4load\x01\x02"]
)
def test_garbage_is_dropped(frame, tmp_path, caplog):
    """Fault 21: a message to the socket cannot end the process, and with it all engines in lockstep."""
    coordinator = Coordinator(f"ipc://{tmp_path}/c", None, lockstep=True)
    try:
        coordinator._receive(frame)
        assert "ignored an invalid report" in caplog.text
        assert not coordinator.state.changed
    finally:
        coordinator.close()


def joined(count: int) -> CoordinatorState:
    state = CoordinatorState()
    for index in range(count):
        assert state.take(EngineLoad(index)) == []
    return state


def test_the_table_shows_what_engines_said_last():
    state = joined(2)
    state.take(EngineLoad(1, 3, 4))
    assert state.changed
    assert state.table() == LoadTable([(0, 0, 0), (1, 3, 4)], 0, False)
    assert not state.changed


def test_the_first_request_wakes_the_others_and_the_second_nobody():
    state = joined(3)
    assert state.take(WaveStart(0, 2)) == [WaveStart(0, 2)]
    assert state.take(WaveStart(0, 1)) == []
    assert state.table().is_running


def test_engines_that_never_pause_run_always_and_wake_nobody():
    state = CoordinatorState(lockstep=False)
    assert state.take(WaveStart(0, 0)) == []
    assert state.table() == LoadTable([], 0, is_running=True)


def test_a_newer_wave_is_adopted():
    state = joined(2)
    state.take(WaveStart(0, 0))
    assert state.take(WaveStart(4, 0)) == [WaveStart(4, 0)]
    assert state.table().wave == 4


def test_the_verdict_waits_for_the_last_and_is_the_or():
    state = joined(3)
    state.take(WaveStart(0, 0))
    assert state.take(WaveSync(0, 0, unfinished=False)) == []
    assert state.take(WaveSync(2, 0, unfinished=True)) == []
    assert state.take(WaveSync(1, 0, unfinished=False)) == [WaveVerdict(0, unfinished=True)]
    assert state.table().is_running


def test_a_wave_ends_when_nobody_has_work():
    state = joined(2)
    state.take(WaveStart(0, 0))
    state.take(WaveSync(0, 0, unfinished=False))
    assert state.take(WaveSync(1, 0, unfinished=False)) == [WaveVerdict(0, unfinished=False)]
    assert state.table() == LoadTable([(0, 0, 0), (1, 0, 0)], 1, False)
    assert state.take(WaveStart(1, 0)) == [WaveStart(1, 0)]


def test_word_of_a_wave_that_is_over_wakes_nobody():
    """A front end's word may be late: the engine it excludes would stay out of a wave in which the others wait."""
    state = joined(2)
    state.take(WaveStart(0, 0))
    state.take(WaveSync(0, 0, unfinished=False))
    state.take(WaveSync(1, 0, unfinished=False))
    assert state.take(WaveStart(0, 0)) == []
    assert state.table() == LoadTable([(0, 0, 0), (1, 0, 0)], 1, False)


@given(
    work=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=12),
    order=st.randoms(),
)
def test_one_verdict_per_round_whatever_the_order(work, order):
    state = joined(3)
    wave = 0
    for unfinished in work:
        state.take(WaveStart(wave, 0))
        syncs = [WaveSync(index, wave, flag) for index, flag in enumerate(unfinished)]
        order.shuffle(syncs)
        verdicts = [verdict for sync in syncs for verdict in state.take(sync)]
        assert verdicts == [WaveVerdict(wave, any(unfinished))]
        wave += not any(unfinished)
        assert state.wave == wave
