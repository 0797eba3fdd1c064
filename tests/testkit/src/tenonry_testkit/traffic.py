"""Events of a scheduler, as values that hypothesis can draw, shrink and print. Test process.

A failing test prints a list of these; `play(harness, [...])` in a test of your own repeats it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np

from tenonry.sampling_params import SamplingParams, StructuredOutput
from tenonry.step import Adapter, Media
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.ledger import Entry
from tenonry_testkit.spec import HarnessSpec

LOW_BITS = 1 << 16  # ids that differ by a multiple share as many low bits
ANYTHING = StructuredOutput(regex="(.|\\n)*")


@dataclasses.dataclass(frozen=True, slots=True)
class Send:
    """A request. Prompts of one `family` share their beginning; `tail` distinguishes them at the end.

    `images`: sizes of images, from the third token on with a token between, as far as the prompt holds them; `whole`:
    they are indivisible, each in so many `pieces`. `stop_after`: the id of the output token at this index ends the
    request at its first occurrence; `other_stop_ids`: so many more, which the model never samples, but which are equal
    in their low bits.
    """

    family: int = 0
    length: int = 4
    tail: int = 0
    max_tokens: int = 4
    min_tokens: int = 0
    stop_after: int | None = None
    other_stop_ids: int = 0
    num_delivered: int = 0
    priority: int = 0
    client: int = 0
    adapter: Adapter | None = None
    cache_salt: str | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    has_grammar: bool = False
    images: tuple[int, ...] = ()
    whole: bool = False
    pieces: int = 1

    def __repr__(self) -> str:
        fields = [
            (field.name, getattr(self, field.name), field.default)
            for field in dataclasses.fields(self)
        ]
        return f"Send({', '.join(f'{name}={value!r}' for name, value, usual in fields if value != usual)})"


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """Iterate the engine `times` times: launch while there is room, else collect the oldest result."""

    times: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """Launch one more step, if the depth permits it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver the oldest result, if one is due."""


@dataclasses.dataclass(frozen=True, slots=True)
class Abort:
    """Abort the `which`-th live request; None aborts all."""

    which: int | None = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Reset:
    """Clear the prefix cache; `running`: preempt all first."""

    running: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """Advance the clock."""

    seconds: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class FailRow:
    """Fail the `which`-th live request in the worker from its next step on."""

    which: int = 0


Op = Send | Turn | Launch | Deliver | Abort | Reset | Tick | FailRow


def prompt_of(send: Send, spec: HarnessSpec) -> list[int]:
    """Token ids of the prompt: the family's beginning, then the tail."""
    length = min(send.length, spec.max_model_len - 1)
    prompt = [(send.family * 17 + position * 5 + 1) % spec.vocab_size for position in range(length)]
    if send.tail:
        prompt[-1] = (prompt[-1] + send.tail) % spec.vocab_size
    return prompt


def send(harness: SchedulerHarness, ask: Send) -> Entry:
    """Add the request to the harness."""
    prompt = prompt_of(ask, harness.spec)
    min_tokens = min(ask.min_tokens, ask.max_tokens)
    return harness.add(
        prompt,
        ask.max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=_stop_ids(harness, ask, prompt),
        num_delivered=ask.num_delivered,
        client=ask.client,
        priority=ask.priority,
        adapter=ask.adapter,
        cache_salt=ask.cache_salt,
        logprobs=ask.logprobs,
        prompt_logprobs=ask.prompt_logprobs,
        structured_output=ANYTHING if ask.has_grammar else None,
        media=media_of(ask.images, len(prompt), num_pieces=ask.pieces * ask.whole),
    )


def media_of(sizes: Sequence[int], num_tokens: int, *, num_pieces: int = 0) -> Media | None:
    """Images that fit into a prompt of `num_tokens` tokens; None without any.

    `num_pieces`: of each image, which no step may cut; 0: none.
    """
    spans = []
    begin = 2
    for size in sizes:
        if begin + size > num_tokens:
            break
        spans.append((begin, size))
        begin += size + 1
    if not spans:
        return None
    digests = np.zeros((len(spans), 32), np.uint8)
    digests[:, 0] = [size for _, size in spans]
    places = np.array(spans, np.int64)
    pieces = [piece for span in spans for piece in _divided(*span, num_pieces)]
    return Media(places, digests, [{} for _ in spans], np.array(pieces, np.int64).reshape(-1, 2))


def _divided(begin: int, size: int, count: int) -> list[tuple[int, int]]:
    """Neighbouring pieces of an image, `count` where it has so many tokens: first token and size of each."""
    bounds = [begin + size * number // max(1, count) for number in range(count + 1)]
    return [(start, stop - start) for start, stop in pairwise(bounds) if stop > start]


def _stop_ids(harness: SchedulerHarness, ask: Send, prompt: list[int]) -> tuple[int, ...]:
    """Return the id that the request would produce at `stop_after`, so that it stops there, after the other ids."""
    if ask.stop_after is None:
        return ()
    params = SamplingParams(max_tokens=ask.max_tokens)
    free = harness.oracle.complete(
        prompt, params, max_model_len=harness.spec.max_model_len, adapter=ask.adapter
    )
    own = free.token_ids[ask.stop_after % len(free.token_ids)]
    others = [own + LOW_BITS * (number + 1) for number in range(ask.other_stop_ids)]
    return (*others, own)


def play(harness: SchedulerHarness, ops: Iterable[Op]) -> None:
    """Apply all events, in order."""
    for op in ops:
        apply(harness, op)


def apply(harness: SchedulerHarness, op: Op) -> None:
    """Apply one event."""
    live = harness.ledger.live
    match op:
        case Send():
            send(harness, op)
        case Turn():
            for _ in range(op.times):
                harness.turn()
        case Launch():
            if harness.can_launch:
                harness.launch()
        case Deliver():
            if harness.in_flight:
                harness.deliver()
        case Abort(None):
            harness.abort(None)
        case Abort(which):
            harness.abort([live[which % len(live)].handle] if live and which is not None else [])
        case Reset():
            harness.reset_prefix_cache(reset_running_requests=op.running)
        case Tick():
            harness.clock.advance(op.seconds)
        case FailRow():
            if live:
                harness.fail(live[op.which % len(live)])


# ------------------------------------------------------------------------------------------------------ strategies
def sends(
    *,
    max_length: int = 20,
    max_output: int = 10,
    families: int = 3,
    stops: bool = True,
    delivered: bool = True,
    varied: bool = True,
    images: bool = False,
    whole: bool = False,
) -> st.SearchStrategy[Send]:
    """Draw requests. `varied`: adapters, salts, clients, priorities and log-probabilities too. `images`: some have
    images, indivisible ones with `whole`.
    """
    plain: dict[str, st.SearchStrategy[object]] = {
        "family": st.integers(0, families - 1),
        "length": st.integers(1, max_length),
        "tail": st.integers(0, 2),
        "max_tokens": st.integers(1, max_output),
    }
    if stops:
        plain["stop_after"] = st.none() | st.integers(0, max_output - 1)
        plain["min_tokens"] = st.just(0) | st.integers(0, 3)
    if delivered:
        plain["num_delivered"] = st.just(0) | st.integers(0, 4)
    if varied:
        plain["adapter"] = st.sampled_from((None, None, Adapter("a", "1"), Adapter("a", "2")))
        plain["cache_salt"] = st.sampled_from((None, None, "tenant-1", "tenant-2"))
        plain["client"] = st.integers(0, 1)
        plain["priority"] = st.integers(0, 2)
        plain["logprobs"] = st.sampled_from((None, None, 0, 2))
        plain["prompt_logprobs"] = st.sampled_from((None, None, None, 1))
    if images:
        some = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)
        plain["images"] = st.just(()) | some
        plain["whole"] = st.just(whole)
        plain["pieces"] = st.integers(1, 2) if whole else st.just(1)
    return st.builds(Send, **plain)


def storms(
    requests: st.SearchStrategy[Send] | None = None,
    *,
    waves: int = 8,
    aborts: bool = False,
    resets: bool = False,
    failures: bool = False,
) -> st.SearchStrategy[list[Op]]:
    """Draw programs in up to `waves` waves: a few requests together, some steps, and then the other selected events."""
    asked = sends() if requests is None else requests
    events: list[st.SearchStrategy[Op]] = [
        st.just(Launch()),
        st.just(Deliver()),
        st.builds(Tick, st.sampled_from((0.001, 1.0, 3600.0))),
    ]
    if aborts:
        events += [
            st.builds(Abort, st.integers(0, 5)),
            st.builds(Abort, st.integers(0, 5)),
            st.just(Abort(None)),
        ]
    if resets:
        events.append(st.builds(Reset, st.booleans()))
    if failures:
        events.append(st.builds(FailRow, st.integers(0, 5)))
    wave = st.tuples(
        st.lists(asked, min_size=1, max_size=5),
        st.lists(st.builds(Turn, st.integers(1, 5)), max_size=2),
        st.lists(st.one_of(events), max_size=3),
        st.lists(st.builds(Turn, st.integers(1, 4)), max_size=1),
    )
    return st.lists(wave, min_size=3, max_size=waves).map(_flat)


def _flat(drawn: Sequence[tuple[Sequence[Op], ...]]) -> list[Op]:
    return [op for wave in drawn for part in wave for op in part]
