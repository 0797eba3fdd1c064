from __future__ import annotations

import argparse
import asyncio
from types import SimpleNamespace

import psutil
import pytest

from tenonry.errors import ConfigError, TenonryError
from tenonry_bench.__main__ import main
from tenonry_bench.affinity import (
    POLICIES,
    layouts_for,
    policies,
    sizes_from,
    summarise,
    with_blocks,
)
from tenonry_bench.conversations import Reuse, Sizes, Turn, enough_blocks, hold, make_conversations

SIZES = Sizes(conversations=5, turns=3, system=8, user_low=2, user_high=6, answer=4, pause_s=0.01)


@pytest.mark.integration
def test_report(bench, model_folder):
    """A real prefix cache in each real engine; only the worker computes nothing."""
    words = "--conversations 6 --turns 3 --engines 2 --system-len 16 --user-len 8,24 --answer-len 16 --pause-ms 5"
    more = ("--runs", "1", "--balancing", "affinity", "--model", model_folder)
    report, printed = bench("affinity", *words.split(), *more)
    found = {result["layout"]: result for result in report["results"]}
    assert list(found) == ["1 engine", "2 engines, affinity"]
    assert report["blocks"] == found["1 engine"]["blocks_per_engine"]
    assert found["2 engines, affinity"]["blocks_per_engine"] == report["blocks"] / 2
    for result in report["results"]:
        assert 0 < result["hit_rate"]["median"] < 1
    assert found["1 engine"]["ratio"]["median"] == 1
    assert (
        found["2 engines, affinity"]["ratio"]["median"] > 0.6
    )  # all but the first turns, and some of those
    assert "ratio to 1 engine" in printed
    assert psutil.Process().children() == []


def test_conversations_follow_from_the_run_alone():
    first = make_conversations(SIZES, 0, 400)
    assert first == make_conversations(SIZES, 0, 400)
    assert first != make_conversations(SIZES, 1, 400)
    assert [len(turns) for turns in first] == [3] * 5
    system = first[0][0].token_ids[:8]
    for turns in first:
        assert turns[0].token_ids[:8] == system
        for number, turn in enumerate(turns):
            assert 2 <= len(turn.token_ids) - (0 if number else 8) <= 6
            assert 0 <= turn.pause_s <= 0.02
            assert max(turn.token_ids) < 400
    assert SIZES.longest_prompt == 8 + 3 * 6 + 2 * 4


class FakeEngine:
    """Remembers the prompts that it has answered, reports their longest common prefix, and answers `count` tokens."""

    def __init__(self, count: int) -> None:
        self.count, self.prompts = count, []

    async def generate(self, prompt, params, request_id):
        ids = prompt["prompt_token_ids"]
        known = max((len(old) for old in self.prompts if ids[: len(old)] == old), default=0)
        self.prompts.append(ids)
        await asyncio.sleep(0)
        yield SimpleNamespace(
            outputs=[SimpleNamespace(token_ids=[9] * self.count)], num_cached_tokens=known
        )


def test_each_turn_asks_with_all_that_was_said():
    engine = FakeEngine(2)
    talk = [Turn(0.0, [1, 2]), Turn(0.0, [3]), Turn(0.0, [4])]
    reuse = asyncio.run(hold(engine, [talk], 2, 0))
    assert engine.prompts == [[1, 2], [1, 2, 9, 9, 3], [1, 2, 9, 9, 3, 9, 9, 4]]
    assert reuse == Reuse(cached=2 + 5, prompt=2 + 5 + 8)
    assert reuse.rate == pytest.approx(7 / 15)


def test_an_answer_cut_short_is_an_error():
    with pytest.raises(TenonryError, match="turn 0 of conversation 3-0 got 1 of 2 tokens"):
        asyncio.run(hold(FakeEngine(1), [[Turn(0.0, [1])]], 2, 3))


def test_blocks_hold_whole_conversations():
    turns = [Turn(0.0, [1] * 10), Turn(0.0, [1] * 5)]  # with their answers 14 and 23 tokens
    assert enough_blocks([[turns[:1]], [turns] * 8], SIZES, 1, 16) == 1.25 * 8 * 2
    assert enough_blocks([[turns]], SIZES, 3, 16) == 3 * 3  # 38 tokens at most, on each engine


@pytest.mark.integration
def test_the_blocks_are_shared_out(model_folder):
    from tenonry.config.sources import make_config

    config = make_config({"model": str(model_folder)})
    one, *several = layouts_for(4, POLICIES)
    assert with_blocks(config, one, 400).num_gpu_blocks_override == 400
    assert {with_blocks(config, layout, 400).num_gpu_blocks_override for layout in several} == {100}
    assert several[1].config(config).load_balancer.name == "round-robin"
    assert several[1].config(config).data_parallel_size == 4


def test_ratios_are_to_the_single_engine_of_the_same_run():
    one, *several = layouts_for(2, ["affinity"])
    found = {one: [Reuse(80, 100), Reuse(0, 100)], several[0]: [Reuse(60, 100), Reuse(1, 100)]}
    single, affinity = summarise(found, 10)
    assert single.blocks_per_engine == 10
    assert affinity.blocks_per_engine == 5
    assert affinity.ratio.max == pytest.approx(0.75)
    assert affinity.ratio.min == 0
    assert single.hit_rate.max == 0.8
    assert single.hit_rate.min == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user_len": [3]}, "--user-len 3 must be LOW,HIGH"),
        ({"user_len": [9, 3]}, "--user-len 9,3 must be"),
        ({"user_len": [0, 3]}, "--user-len 0,3 must be"),
        ({"engines": 1}, "--engines 1: at least 2"),
    ],
)
def test_lengths_that_are_none_are_refused(changes, message):
    args = {
        "conversations": 1,
        "turns": 1,
        "engines": 2,
        "system_len": 1,
        "user_len": [1, 2],
        "answer_len": 1,
    }
    with pytest.raises(ConfigError, match=message):
        sizes_from(argparse.Namespace(**args | {"pause_ms": 0} | changes))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "affinity --data-parallel-size 2",
            "--data-parallel-size is set by this benchmark; give --engines instead",
        ),
        ("affinity --load-balancing round-robin", "give --balancing instead"),
        ("affinity --num-gpu-blocks-override 9", "give --blocks instead"),
        ("data-parallel --data-parallel-size 2", "give --sizes instead"),
        ("start-engines --data-parallel-size 2", "give --sizes instead"),
    ],
)
def test_flags_that_would_change_nothing_are_refused(words, message, capsys):
    assert main(words.split()) == 1
    assert message in capsys.readouterr().err


def test_ways_to_choose_are_named():
    assert policies("round-robin,affinity") == ["round-robin", "affinity"]
    with pytest.raises(
        argparse.ArgumentTypeError, match="'best' is none of affinity, round-robin, least-loaded"
    ):
        policies("best")


@pytest.mark.integration
def test_conversations_that_do_not_fit_are_refused_before_anything_starts(model_folder, capsys):
    assert main(["affinity", "--model", str(model_folder)]) == 1
    assert (
        "prompts of 1472 and outputs of 64 tokens need 1536, but max_model_len is 256"
        in capsys.readouterr().err
    )
