"""Choice of the engine for a request (DP-11: cache affinity, then the less loaded of two random choices)."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.config import EngineConfig
from tenonry.errors import PluginError
from tenonry.messages import EngineCoreRequest
from tenonry.sampling_params import SamplingParams
from tenonry.step import Adapter
from tenonry_scale_out.balancers.affinity import (
    CHUNK_TOKENS,
    COMMON,
    MAX_CHUNKS,
    SLACK,
    Affinity,
    chunk_digests,
)
from tenonry_scale_out.balancers.least_loaded import LeastLoaded
from tenonry_scale_out.balancers.prefill_decode import PrefillDecode
from tenonry_scale_out.balancers.round_robin import RoundRobin
from tenonry_scale_out.load_balancer import LoadBalancer, LoadBalancerContext

ENGINES = [0, 1, 2, 3]


def request(tokens: list[int], **fields: object) -> EngineCoreRequest:
    return EngineCoreRequest(
        handle=1,
        request_id="r",
        prompt_token_ids=np.array(tokens, np.int32),
        sampling_params=SamplingParams(),
        **fields,
    )


def build(kind: type[LoadBalancer], seed: int = 0, **options: object) -> LoadBalancer:
    context = LoadBalancerContext(
        EngineConfig(model="m"), options=kind.Options(**options), seed=seed
    )
    return kind(context)


def words(seed: int, count: int) -> list[int]:
    draw = random.Random(seed).randrange
    return [draw(1000) for _ in range(count)]


def idle(_engine: int) -> int:
    return 0


@pytest.mark.parametrize("kind", [Affinity, LeastLoaded, RoundRobin])
def test_one_engine_gets_everything(kind):
    balancer = build(kind)
    assert {balancer.pick(request(words(i, 40)), [7], lambda _: 10**6) for i in range(5)} == {7}


def test_round_robin_takes_turns_whatever_the_load():
    balancer = build(RoundRobin)
    same = request(words(0, 64))
    assert [balancer.pick(same, [0, 2, 5], [9, 0, 0, 0, 0, 0].__getitem__) for _ in range(5)] == [
        0,
        2,
        5,
        0,
        2,
    ]


@given(st.lists(st.integers(0, 50), min_size=2, max_size=6), st.integers(0, 1000))
def test_of_two_choices_the_less_loaded_is_taken(loads, seed):
    """Over several engines the most loaded one, if it is alone, is never taken; over two it is always the other."""
    balancer = build(LeastLoaded, seed)
    engines = list(range(len(loads)))
    chosen = {balancer.pick(request([1]), engines, loads.__getitem__) for _ in range(20)}
    assert chosen <= set(engines)
    if loads.count(max(loads)) == 1:
        assert loads.index(max(loads)) not in chosen


def test_two_choices_keep_the_engines_even():
    balancer, loads = build(LeastLoaded, 1), Counter()
    for i in range(4000):
        loads[balancer.pick(request([i]), ENGINES, loads.__getitem__)] += 1
    assert max(loads.values()) - min(loads.values()) <= 8


@given(st.integers(0, 100), st.integers(CHUNK_TOKENS, 300), st.integers(0, 200))
def test_a_conversation_stays_where_it_began(seed, length, more):
    """As long as what is known of it is a quarter of the prompt or more."""
    balancer = build(Affinity, seed)
    prompt = words(seed, length)
    home = balancer.pick(request(prompt), ENGINES, idle)
    longer = prompt + words(seed + 1, min(more, length // CHUNK_TOKENS * CHUNK_TOKENS * 4 - length))
    assert balancer.pick(request(longer), ENGINES, idle) == home


def test_affinity_gives_way_when_the_engine_is_much_busier():
    prompt = request(words(1, 64))

    def second(extra: int, others: int) -> bool:
        balancer = build(Affinity)
        home = balancer.pick(prompt, ENGINES, idle)
        loads = dict.fromkeys(ENGINES, others) | {home: 2 * others + SLACK + extra}
        return balancer.pick(prompt, ENGINES, loads.__getitem__) == home

    for others in (0, 5, 100):
        assert second(0, others)
        assert not second(1, others)


def test_a_conversation_that_moved_has_a_new_home():
    balancer, prompt = build(Affinity), request(words(1, 64))
    old = balancer.pick(prompt, ENGINES, idle)
    new = balancer.pick(prompt, ENGINES, (dict.fromkeys(ENGINES, 0) | {old: 100}).__getitem__)
    assert new != old
    assert balancer.pick(prompt, ENGINES, idle) == new


def test_an_engine_that_left_has_no_claim():
    balancer, prompt = build(Affinity), request(words(1, 64))
    home = balancer.pick(prompt, ENGINES, idle)
    rest = [engine for engine in ENGINES if engine != home]
    assert balancer.pick(prompt, rest, idle) in rest


@pytest.mark.parametrize(
    ("field", "value"), [("cache_salt", "mine"), ("adapter", Adapter("poet", "1f"))]
)
def test_salt_and_adapter_separate_what_is_cached(field, value):
    prompt = words(1, 64)
    plain, other = request(prompt), request(prompt, **{field: value})
    assert not set(chunk_digests(plain)) & set(chunk_digests(other))
    assert chunk_digests(other) == chunk_digests(request(prompt, **{field: value}))
    balancer = build(Affinity)
    home = balancer.pick(plain, ENGINES, idle)
    busy = (
        dict.fromkeys(ENGINES, 0) | {home: SLACK}
    ).__getitem__  # other prompts avoid it, the known one does not
    assert balancer.pick(other, ENGINES, busy) != home
    assert balancer.pick(plain, ENGINES, busy) == home


def test_less_than_a_quarter_of_a_prompt_does_not_count():
    start = words(1, 64)

    def stays(total: int) -> bool:
        balancer = build(Affinity)
        home = balancer.pick(request(start), ENGINES, idle)
        busy = (dict.fromkeys(ENGINES, 0) | {home: 1}).__getitem__
        return balancer.pick(request(start + words(2, total - 64)), ENGINES, busy) == home

    assert stays(4 * 64)
    assert not stays(4 * 64 + 1)


@pytest.mark.parametrize("shared", [64, 1024])
def test_a_shared_beginning_does_not_pull_everything_to_one_engine(shared):
    """Conversations that begin alike, one after another on idle engines: each gets its share, and keeps its place."""
    balancer, system = build(Affinity), words(0, shared)
    prompts = [system + words(i + 1, 40) for i in range(200)]
    homes = [balancer.pick(request(prompt), ENGINES, idle) for prompt in prompts]
    assert min(Counter(homes[COMMON:]).values()) >= 30
    again = [balancer.pick(request(prompt + words(999, 30)), ENGINES, idle) for prompt in prompts]
    assert again == homes


def test_what_is_remembered_is_bounded():
    """The oldest is forgotten; of a prompt no more than its beginning is kept."""
    balancer = build(Affinity, remembered_chunks=100)
    for i in range(100):
        balancer.pick(request(words(i, 64)), ENGINES, idle)
    assert len(balancer._owners) == 100
    assert chunk_digests(request(words(99, 64)))[-1] in balancer._owners
    assert chunk_digests(request(words(0, 64)))[-1] not in balancer._owners
    assert len(chunk_digests(request([1] * (2 * MAX_CHUNKS * CHUNK_TOKENS)))) == MAX_CHUNKS


@given(st.lists(st.integers(0, 5), max_size=80), st.integers(0, 80))
def test_digests_name_prefixes(tokens, cut):
    """Of equal beginnings the digests are equal, and a change anywhere changes all that follow."""
    whole = chunk_digests(request(tokens))
    assert len(whole) == len(tokens) // CHUNK_TOKENS
    assert chunk_digests(request(tokens[:cut])) == whole[: min(cut, len(tokens)) // CHUNK_TOKENS]
    if cut < len(tokens):
        changed = chunk_digests(request([*tokens[:cut], 6, *tokens[cut + 1 :]]))
        assert [a == b for a, b in zip(whole, changed, strict=True)] == [
            place < cut // CHUNK_TOKENS for place in range(len(whole))
        ]


# ------------------------------------------------------------------------------------- prefill-decode
def prefill(number: int) -> EngineCoreRequest:
    return request(words(number, 40), kv_transfer_params={"do_remote_decode": True})


def test_prompts_go_to_the_first_engines_and_requests_to_the_others():
    balancer = build(PrefillDecode, prefill_engines=2, balancer="round-robin")
    assert {balancer.pick(prefill(n), ENGINES, lambda _: 0) for n in range(8)} == {0, 1}
    decoded = request(words(1, 40), kv_transfer_params={"token": "t"})
    assert {balancer.pick(decoded, ENGINES, lambda _: 0) for _ in range(8)} == {2, 3}
    assert {balancer.pick(request([n]), ENGINES, lambda _: 0) for n in range(8)} == {2, 3}


def test_where_one_sort_has_died_the_other_takes_its_requests():
    balancer = build(PrefillDecode, prefill_engines=2)
    assert balancer.pick(request([1]), [0, 1], {0: 5, 1: 3}.__getitem__) == 1
    assert balancer.pick(prefill(1), [2, 3], {2: 1, 3: 3}.__getitem__) == 2


def test_options_of_the_balancer_within_are_checked():
    options = PrefillDecode.Options(balancer="affinity", options={"slack": -1})
    with pytest.raises(PluginError, match="slack"):
        PrefillDecode.check(EngineConfig(model="m"), options)
