"""Replayed steps compute what launched ones do: with recorded operations in the place of a GPU's graphs."""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import pytest
import torch
from plain_backend import PlainBackend
from recorded_graphs import RecordedGraph, RecordedGraphs
from row_schedule import Schedule
from transformers import LlamaConfig, LlamaForCausalLM

from tenonry.info import PluginRecord
from tenonry.sampling_params import SamplingParams
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.points import CUDA, DEVICE_PASSES
from tenonry_worker_torch.runner.assemble import assemble_runner
from tenonry_worker_torch.runner.feature import RunnerFeature
from tenonry_worker_torch_cuda import CudaBuffers
from tenonry_worker_torch_cuda.graphs.captured import GraphedPass

pytestmark = pytest.mark.integration

CPU = torch.device("cpu")
BLOCK_SIZE, BLOCKS, ROWS = 4, 48, 6
DRAWN = SamplingParams(temperature=0.8, seed=5, top_p=0.9, logprobs=2)
MIXED = {  # by row; the others are greedy
    "temperature": {0: {"temperature": 1.0}, 5: {"temperature": 0.6, "seed": 9}},
    "top_p": {0: {"temperature": 1.2, "top_p": 0.8}, 2: {"temperature": 1.0}},
    "top_k and min_p": {
        1: {"temperature": 2.0, "top_k": 9, "min_p": 0.02},
        3: {"temperature": 0.9},
    },
}


def built(depth=1, **more):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3,
    )  # fmt: skip
    module = LlamaForCausalLM(config).eval().requires_grad_(False)
    given = {"max_model_len": 64, "fuse": True, "skip_check": True} | more
    return build(module, BuildPlan(PlainBackend, CudaBuffers(CPU, depth), **given))


def runner(maker, depth=1, features=(), model=None):
    model = model or built(depth)
    if maker is not None:
        model.make_pass = partial(GraphedPass, maker=maker)
    made = assemble_runner(
        model, max_num_seqs=ROWS, max_model_len=64, num_blocks=BLOCKS, block_size=BLOCK_SIZE, features=features
    )  # fmt: skip
    dirty(made)
    return made


def dirty(made):
    """No slot that a row has not written may be read."""
    for cache in made.memory.kv_caches:
        cache.both.fill_(float("nan"))


def prompt(seed, length):
    return np.random.default_rng(seed).integers(3, 96, length).tolist()


def scenario(schedule):
    """Rows in changing company: one that draws, one that leaves its blocks to another, one that is preempted."""
    enter, step = schedule.enter, schedule.step
    enter("a", 2, prompt(1, 5))
    enter("b", 0, prompt(2, 3), DRAWN)
    enter("c", 5, prompt(3, 9))
    enter("d", 1, prompt(4, 1))
    step(new=("a", "b", "c", "d"))
    for _ in range(6):  # over the ends of blocks
        step("a", "b", "c", "d")
    schedule.leave("b")
    enter("e", 3, prompt(6, 7))
    step("c", "a", "d", new=("e",))  # "e" has the blocks of "b"
    for names in (("a", "e", "c"), ("e", "a", "c"), ("a",), ("e", "d"), ("a", "c", "d", "e")):
        step(*names)
    schedule.leave("a")
    step("c", "d", "e")
    enter("a", 0, [])
    step("c", new=("a",))  # with all its tokens, in another row and other blocks
    for _ in range(4):
        step("a", "c", "d", "e")
    schedule.answers()
    return schedule.tokens


def tokens(made, depth=1):
    return scenario(Schedule(made, BLOCK_SIZE, BLOCKS, depth))


@pytest.fixture(scope="module")
def wanted():
    found = tokens(runner(None))
    assert len({token for each in found.values() for token in each}) > 10
    return found


@pytest.mark.parametrize("depth", [1, 2])
def test_tokens_are_those_of_launched_steps(wanted, depth):
    maker = RecordedGraphs()
    made = runner(maker, depth)
    assert tokens(made, depth) == wanted
    assert made.forward_pass.sizes == [1, 2, 4]
    # Of 16 steps in which all rows decode, the first of each bucket is launched, and then replayed to be compared.
    assert maker.replays == 16


class Count:
    """Steps that the sampler sampled; all rows of each decode if `decodes`."""

    def __init__(self, made):
        self.decodes, sample = 0, made.sampler.sample
        made.sampler.sample = lambda logits, step: self._counted(sample, logits, step)

    def _counted(self, sample, logits, step):
        self.decodes += bool((step.num_output > 0).all())
        return sample(logits, step)


def mixed(schedule, given):
    """Four rows with parameters of their own, in three numbers of rows."""
    params = {
        row: SamplingParams(**{"temperature": 0.0, **given.get(row, {})}) for row in range(ROWS)
    }
    for row, name in enumerate("abcd"):
        schedule.enter(name, row, prompt(row, 4 + row), params[row])
    schedule.step(new="abcd")
    for names in ("abcd", "dbca", "abc", "abcd", "b", "cab", "b", "abcd"):
        schedule.step(*names)
    schedule.answers()
    return schedule.tokens


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("given", MIXED.values(), ids=MIXED)
def test_graphs_draw_the_tokens_of_the_sampler(given, depth):
    wanted = mixed(Schedule(runner(None), BLOCK_SIZE, BLOCKS), given)
    maker = RecordedGraphs()
    made = runner(maker, depth)
    counted = Count(made)
    assert mixed(Schedule(made, BLOCK_SIZE, BLOCKS, depth), given) == wanted
    # Each step is one replay, and the sampler sees those alone that are recorded.
    assert maker.replays == 8
    assert counted.decodes == len(maker.graphs) < 8


def test_sampling_that_cannot_be_recorded_follows_the_graphs(caplog):
    class Refusing(RecordedGraphs):
        def record(self, launch):
            self.failure = None
            graph = super().record(launch)
            if any("sort" in str(func) for func, *_ in graph.calls):
                raise RuntimeError("operation not permitted when stream is capturing")
            return graph

    given = MIXED["top_p"]
    wanted = mixed(Schedule(runner(None), BLOCK_SIZE, BLOCKS), given)
    maker = Refusing()
    with caplog.at_level(logging.WARNING, "tenonry.worker"):
        assert mixed(Schedule(runner(maker), BLOCK_SIZE, BLOCKS), given) == wanted
    (line,) = [each.message for each in caplog.records]
    assert "CUDA graphs exclude sampling: operation not permitted" in line
    assert maker.replays


def test_rows_with_log_probabilities_leave_a_step_to_the_sampler(wanted):
    """A token that a graph sampled feeds the next step, whichever samples that; the graph is the same."""
    maker = RecordedGraphs()
    made = runner(maker)
    schedule = Schedule(made, BLOCK_SIZE, BLOCKS)
    counted = Count(made)
    schedule.enter("a", 2, prompt(1, 5))
    schedule.enter("c", 5, prompt(3, 9))
    schedule.step(new=("a", "c"))
    for _ in range(3):
        schedule.step("a", "c")
    assert counted.decodes == 1
    schedule.enter("b", 0, prompt(2, 3), DRAWN)
    schedule.step("a", "c", new=("b",))
    for _ in range(2):
        schedule.step("a", "c", "b")
    assert counted.decodes == 3
    assert len(maker.graphs) == 2  # of two rows and of four
    assert schedule.tokens["a"] == wanted["a"][:7]
    assert schedule.tokens["c"] == wanted["c"][:7]


def test_all_parameters_of_draws_share_a_graph():
    """Two for a number of rows: rows that all are greedy, and others."""
    maker = RecordedGraphs()
    made = runner(maker)
    schedule = Schedule(made, BLOCK_SIZE, BLOCKS)
    for row, given in enumerate(
        [{}, *(each for some in MIXED.values() for each in some.values())][:5]
    ):
        params = SamplingParams(**{"temperature": 0.0, **given})
        schedule.enter(str(row), row, prompt(row, 5), params)
    schedule.step(new="01234")
    for name in "01234":
        schedule.step(name)
    assert len(maker.graphs) == 2
    assert maker.replays == 5


def test_steps_with_prompts_are_launched():
    maker = RecordedGraphs()
    schedule = Schedule(runner(maker), BLOCK_SIZE, BLOCKS)
    for row, name in enumerate("ab"):
        schedule.enter(name, row, prompt(row, 5))
        schedule.step(*"ab"[:row], new=(name,))
    assert not maker.graphs


def test_padding_and_rows_that_left_write_nothing():
    """A step of three rows after one of four: the fourth place writes to no block of a request."""
    made = runner(RecordedGraphs())
    schedule = Schedule(made, BLOCK_SIZE, BLOCKS)
    for row, name in enumerate("abcd"):
        schedule.enter(name, row, prompt(row, 5))
    schedule.step(new="abcd")
    schedule.step(*"abcd")
    left = schedule.blocks["d"]
    before = [cache.both[left].clone() for cache in made.memory.kv_caches]
    schedule.leave("d")
    schedule.step(*"abc")
    schedule.step(*"abc")
    for cache, kept in zip(made.memory.kv_caches, before, strict=True):
        torch.testing.assert_close(cache.both[left], kept, rtol=0, atol=0, equal_nan=True)


def test_graphs_are_dropped_with_the_cache_and_recorded_over_the_next_one(wanted):
    maker = RecordedGraphs()
    made = runner(maker)
    schedule = Schedule(made, BLOCK_SIZE, BLOCKS)
    schedule.enter("a", 0, prompt(1, 5))
    schedule.step(new="a")
    schedule.step("a")
    schedule.leave("a")
    schedule.step()
    assert made.forward_pass.sizes == [1]
    made.release()
    assert made.forward_pass.sizes == []
    assert not maker.graphs
    made.allocate()
    dirty(made)
    assert tokens(made) == wanted
    assert made.forward_pass.sizes == [1, 2, 4]


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        (RuntimeError("operation not supported\nmore"), "--enforce-eager"),
        (torch.OutOfMemoryError("CUDA out of memory"), "--gpu-memory-utilization"),
    ],
)
def test_a_driver_that_records_nothing_is_reported_once(wanted, caplog, failure, remedy):
    made = runner(RecordedGraphs(failure))
    with caplog.at_level(logging.WARNING, "tenonry.worker"):
        assert tokens(made) == wanted
    (line,) = [each.message for each in caplog.records]
    assert "launching steps kernel by kernel" in line
    assert str(failure).partition("\n")[0] in line
    assert "more\n" not in line
    assert remedy in line


def test_a_graph_that_computes_otherwise_is_not_used(wanted, caplog, monkeypatch):
    monkeypatch.setattr(RecordedGraph, "replay", lambda self: None)
    with caplog.at_level(logging.WARNING, "tenonry.worker"):
        assert tokens(runner(RecordedGraphs())) == wanted
    assert [each.message.rpartition(": ")[2] for each in caplog.records] == [
        "a replayed step differs from a launched one"
    ]


class Watching(RunnerFeature):
    name = "watching"

    def prepare(self, step):
        pass


def test_features_that_see_each_step_keep_their_hooks(wanted, caplog):
    record = PluginRecord("tenonry.runner_features", "watching", "odd", "1.0", "m:Watching")
    maker = RecordedGraphs()
    with caplog.at_level(logging.WARNING, "tenonry.worker"):
        made = runner(maker, features=[(Watching, record)])
        assert tokens(made) == wanted
    assert not maker.graphs
    assert "the runner features watching take part in each step" in caplog.text


@pytest.mark.parametrize("fuse", [True, False])
def test_the_pass_is_used_unless_steps_are_to_be_launched(wanted, caplog, monkeypatch, fuse):
    """`--enforce-eager` applies no pass. Here there is no driver, which costs the graphs and nothing else."""
    monkeypatch.setitem(DEVICE_PASSES, "cpu", {"graphs": CUDA})
    model = built(fuse=fuse)
    assert ("graphs" in model.passes.used) is fuse
    assert (model.make_pass is not None) is fuse
    with caplog.at_level(logging.WARNING, "tenonry.worker"):
        assert tokens(runner(None, model=model)) == wanted
    assert ("none can be recorded" in caplog.text) is fuse
