"""The records say what the steps said, whatever ran out and wherever chunks end."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from decision_runs import Asked, make_context, run

from tenonry.info import PluginRecord
from tenonry.messages import EngineCoreRequest
from tenonry.outputs import FinishReason
from tenonry.request import Request
from tenonry.sampling_params import SamplingParams
from tenonry_decisions.attach import make_header
from tenonry_decisions.explain import num_outputs
from tenonry_decisions.frames import CHUNK_STEPS
from tenonry_decisions.observed import ObservedScheduler
from tenonry_decisions.recorder import Recorder
from tenonry_decisions.recording import Recording, recordings
from tenonry_decisions.virtual import answer
from tenonry_scheduler_batching.scheduler import BatchingScheduler


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


def recorded_request(context, *, max_tokens, stop_token_ids=()):
    """A recorded scheduler with one request, and a function that returns its recording."""
    scheduler = BatchingScheduler(context)
    header = make_header(context, PluginRecord("scheduler", "batching", ""), "live")
    chunks = []
    observed = ObservedScheduler(scheduler, [Recorder(header, scheduler, [chunks.append])])
    source = EngineCoreRequest(
        handle=1,
        request_id="a",
        prompt_token_ids=np.arange(4, dtype=np.int32),
        sampling_params=SamplingParams(temperature=0, max_tokens=max_tokens),
        stop_token_ids=stop_token_ids,
    )
    observed.add_request(Request(source, 1, context.clock(), context.max_model_len))
    return observed, lambda: Recording(header, chunks)


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


def test_a_step_in_flight_at_a_stop_adds_no_token():
    context = dataclasses.replace(make_context(), max_concurrent_steps=2, feeds_back_tokens=True)
    observed, recording_of = recorded_request(context, max_tokens=9, stop_token_ids=(7,))
    in_flight = [observed.schedule(), observed.schedule()]
    for token_id in (5, 6, 7, 8):
        output = in_flight.pop(0)
        result = answer(output)
        result.token_ids[:] = token_id
        observed.update_from_output(output, result)
        in_flight.append(observed.schedule())
    observed.shutdown()
    recording = recording_of()
    [track] = recording.tracks
    assert recording.total_tokens.tolist()[:4] == [4, 1, 1, 1]
    assert str(track.reason) == "stop"
    assert num_outputs(recording, track) == 3


@pytest.mark.parametrize("aborted", [False, True])
def test_the_end_of_the_last_request_is_written_before_its_output_leaves(aborted):
    context = make_context()  # its clock stands still
    observed, recording_of = recorded_request(context, max_tokens=1)
    output = observed.schedule()
    if aborted:
        observed.finish_requests([1], FinishReason.ABORT)
    else:
        observed.update_from_output(output, answer(output))
    [track] = recording_of().tracks
    assert str(track.reason) == ("abort" if aborted else "length")


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
