"""Replays recorded requests under another scheduler, and compares. Commands.

A replay has the recorded arrivals, by step, and the recorded lengths. A step is the unit of time, whatever it computes.
Prompts are not recorded: in a replay none shares a prefix with another.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import numpy as np

from tenonry.config import EngineConfig
from tenonry.errors import RequestError
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.kv_cache import KVCacheConfig
from tenonry.messages import EngineCoreRequest
from tenonry.outputs import FinishReason
from tenonry.plugin.manager import resolve_point
from tenonry.sampling_params import SamplingParams
from tenonry_decisions.attach import make_header, policy_of
from tenonry_decisions.explain import num_outputs
from tenonry_decisions.frames import Chunk
from tenonry_decisions.observed import ObservedScheduler
from tenonry_decisions.recorder import Recorder
from tenonry_decisions.recording import Recording, Track
from tenonry_decisions.shadow import build_candidate
from tenonry_decisions.virtual import VirtualEngine

MAX_IDLE_STEPS = 1000  # without a token, while requests wait
REPLAY = "replay"
SETTINGS = {
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "token_budget",
    "enable_chunked_prefill": "chunked_prefill",
    "enable_prefix_caching": "prefix_caching",
}  # of an engine, and the field of the header that they come from


class Latencies(msgspec.Struct, frozen=True):
    """Latencies of all requests, in steps."""

    mean: float
    p50: float
    p99: float

    @staticmethod
    def of(values: list[int]) -> Latencies:
        mean, (p50, p99) = np.mean(values), np.percentile(values, (50, 99))
        return Latencies(round(float(mean), 2), round(float(p50), 2), round(float(p99), 2))


class Outcome(msgspec.Struct, frozen=True):
    """Results of a scheduler for some requests. `ttft`: steps from arrival to the first token, `e2e`: to the last."""

    scheduler: str
    requests: int
    steps: int
    preemptions: int
    ttft: Latencies
    e2e: Latencies


def complete(recording: Recording) -> list[Track]:
    """Requests that arrived within the records and ended by themselves."""
    return [
        track
        for track in recording.tracks
        if track.reason in {FinishReason.STOP, FinishReason.LENGTH}
        and track.facts.step >= recording.first
        and num_outputs(recording, track)
    ]


def outcome(recording: Recording, handles: set[int]) -> Outcome:
    """The numbers of these requests. Raises ValueError if there are none."""
    tracks = [
        track
        for track in recording.tracks
        if track.facts.handle in handles and track.end is not None
    ]
    if not tracks:
        raise ValueError("no request arrived and ended within the records")
    waits = [first_token(recording, track) - track.facts.step + 1 for track in tracks]
    ends = [(track.end or 0) - track.facts.step for track in tracks]
    header = recording.header
    name = f"{header.scheduler} / {header.policy}" if header.policy else header.scheduler
    return Outcome(
        name,
        len(tracks),
        recording.stop - recording.first,
        int(recording.preempted.sum()),
        Latencies.of(waits),
        Latencies.of(ends),
    )


def first_token(recording: Recording, track: Track) -> int:
    """The step that sampled the first token of a request."""
    for stay in track.stays:
        sampled = np.flatnonzero(recording.outputs(track, stay))
        if len(sampled):
            return stay.start + int(sampled[0])
    return recording.stop


def replay(recording: Recording, config: EngineConfig) -> Recording:
    """The same requests under the scheduler of `config`. Raises PluginError, or ValueError where it stops."""
    now = [0.0]
    header = recording.header
    kv_cache = KVCacheConfig(
        num_blocks=header.num_blocks,
        block_size=header.block_size,
        groups=header.groups,
        max_model_len=header.max_model_len,
        num_state_slots=header.num_state_slots,
    )
    context = SchedulerContext(
        config,
        kv_cache,
        max_model_len=header.max_model_len,
        clock=lambda: now[0],
        resolve=partial(resolve_point, allow_experimental=config.allow_experimental_plugins),
    )
    scheduler, plugin = build_candidate(config, config.scheduler, context)
    chunks: list[Chunk] = []
    made = make_header(scheduler.context, plugin, REPLAY, policy_of(config), clock=lambda: 0.0)
    observed = ObservedScheduler(scheduler, [Recorder(made, scheduler, [chunks.append])])
    _drive(VirtualEngine(observed, header.max_model_len), recording, complete(recording), now)
    observed.shutdown()
    return Recording(made, chunks)


def _drive(
    engine: VirtualEngine, recording: Recording, tracks: list[Track], now: list[float]
) -> None:
    """Add each request before the step, counted from the first one, before which it was recorded."""
    waiting = [(track.facts.step - recording.first, track) for track in reversed(tracks)]
    step = idle = 0
    while waiting or engine.has_requests():
        while waiting and waiting[-1][0] <= step:
            _add(engine, recording, waiting.pop()[1], now[0])
        output = engine.step()
        idle = 0 if len(output.row) or waiting else idle + 1
        if idle > MAX_IDLE_STEPS:
            wait = len(engine.num_outputs)
            raise ValueError(
                f"the scheduler scheduled nothing in {idle} steps; {wait} requests are waiting"
            )
        step += 1
        now[0] += 1.0


def _add(engine: VirtualEngine, recording: Recording, track: Track, now: float) -> None:
    facts = track.facts
    prompt = np.random.default_rng(facts.handle).integers(1, 2**31 - 1, facts.num_prompt, np.int32)
    source = EngineCoreRequest(
        handle=facts.handle,
        request_id=facts.request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=num_outputs(recording, track)),
        priority=facts.priority,
    )
    try:
        engine.add(source, now)
    except RequestError as error:
        raise ValueError(f"the scheduler rejected request {track.label}: {error}") from None


def recorded_settings(recording: Recording) -> dict[str, Any]:
    """The recorded engine's settings that bound a step."""
    return {name: getattr(recording.header, field) for name, field in SETTINGS.items()}


def regret(live: Outcome, other: Outcome) -> dict[str, float]:
    """Steps that requests waited longer under the live scheduler than under the other one, by measure."""
    return {
        f"{name}_{measure}": round(
            getattr(getattr(live, name), measure) - getattr(getattr(other, name), measure), 2
        )
        for name in ("ttft", "e2e")
        for measure in ("mean", "p50", "p99")
    }
