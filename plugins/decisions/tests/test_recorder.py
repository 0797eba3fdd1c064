"""The records say what the steps said, whatever ran out and wherever chunks end."""

from __future__ import annotations

import pytest
from decision_runs import Asked, run

from tenonry_decisions.frames import CHUNK_STEPS
from tenonry_decisions.recording import recordings


def tokens_of_steps(recording):
    """Tokens by (step, row), from the stays of all requests."""
    found = {}
    for track in recording.tracks:
        for stay in track.stays:
            for place, count in enumerate(recording.tokens(stay).tolist()):
                if count:
                    found[stay.start + place, stay.row] = count
    return found


def tokens_as_scheduled(outputs):
    return {
        (output.step_id, row): count
        for output in outputs
        for row, count in zip(output.row.tolist(), output.num_tokens.tolist(), strict=True)
    }


def test_every_row_of_every_step_is_recorded(busy):
    assert tokens_of_steps(busy.recording) == tokens_as_scheduled(busy.outputs)
    assert busy.recording.total_tokens.tolist() == [output.total_tokens for output in busy.outputs]
    assert busy.recording.preempted.sum() > 0


def test_each_request_ends_with_its_tokens(busy):
    recording = busy.recording
    got = {
        track.label: sum(int(recording.outputs(track, stay).sum()) for stay in track.stays)
        for track in recording.tracks
    }
    assert got == {"a": 24, "b": 30, "long": 10} | {f"late-{n}": 12 for n in range(4)}
    assert all(str(track.reason) == "length" for track in recording.tracks)


def long_run(**options):
    asked = [Asked(step, f"r{step}", 5, 20) for step in range(0, 3 * CHUNK_STEPS, 16)]
    return run(asked, **options)


def test_chunks_join_without_a_gap():
    found = long_run()
    assert len(found.chunks) > 3
    assert tokens_of_steps(found.recording) == tokens_as_scheduled(found.outputs)


@pytest.mark.parametrize("memory_steps", [1, 300])
def test_memory_keeps_the_last_steps_and_their_requests(memory_steps):
    found = long_run(memory_steps=memory_steps)
    whole = found.recording
    [kept] = recordings([found.memory.frames()])
    assert kept.stop == whole.stop
    assert memory_steps <= kept.stop - kept.first < memory_steps + CHUNK_STEPS
    wanted = tokens_as_scheduled(found.outputs)
    assert tokens_of_steps(kept) == {
        key: count for key, count in wanted.items() if key[0] >= kept.first
    }
    assert kept.used_rows.tolist() == whole.used_rows[kept.first :].tolist()
