"""Rotary tables that depend on the sequence length, and how rotary modules are called."""

from __future__ import annotations

import copy

import parallel_tools
import pytest
import torch
import worker_families
import worker_tools
from worker_driver import Driver, Request

from tenonry.kv_cache import LengthClasses
from tenonry_worker_torch.fuse.rope import rope_table
from tenonry_worker_torch.loading.rotary import call_rotary
from tenonry_worker_torch.loading.rotary_lengths import by_length, follow_lengths

ORIGINAL = 32
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8,
    "long_factor": [1.0 + i for i in range(8)], "original_max_position_embeddings": ORIGINAL,
}  # fmt: skip
BY_LAYER = {
    "full_attention": LONG,
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
MODELS = {
    "dynamic": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": ORIGINAL}),
    "longrope": ("llama", {"rope_parameters": LONG}),
    "by layer": ("gemma3", {"rope_parameters": BY_LAYER, "sliding_window": 8}),
    "phi3": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": ORIGINAL}),
}
LENGTHS = (6, 50, 27, 33)
NUM_TOKENS = 8


@pytest.fixture(params=MODELS)
def kind(request):
    return request.param


@pytest.fixture
def changed(kind, monkeypatch):
    family, changes = MODELS[kind]
    name, values = worker_families.FAMILIES[family]
    monkeypatch.setitem(worker_families.FAMILIES, family, (name, {**values, **changes}))
    return family


def generated(family, prompt):
    """By a module that has seen no other prompt: `dynamic` keeps the table of the longest one."""
    made = worker_families.build(family).generate(
        torch.tensor([prompt]),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return made[0, len(prompt) :].tolist()


def serve(answer, prompts, **way):
    requests = [Request(i + 1, prompt, max_tokens=NUM_TOKENS) for i, prompt in enumerate(prompts)]
    Driver(answer, max_num_seqs=6, num_blocks=96, block_size=4, **way).run(requests)
    return [request.output for request in requests]


def prompts_of(kind):
    """The hand-made scheduler does not compute a row again that outgrows the original length."""
    lengths = [
        length for length in LENGTHS if kind != "phi3" or not 0 <= ORIGINAL - length < NUM_TOKENS
    ]
    return worker_tools.prompts(tuple(lengths))


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.slow
@pytest.mark.nightly_after(3)
def test_each_row_gets_the_tables_of_its_own_length(kind, changed, fuse):
    model = worker_tools.loaded(worker_families.build(changed), fuse=fuse, max_model_len=64)
    runner = worker_tools.runner(model)
    prompts = prompts_of(kind)
    wanted = [generated(changed, prompt) for prompt in prompts]
    assert serve(runner.answer, prompts, budget=11, depth=2) == wanted
    assert serve(runner.answer, prompts[:1]) == wanted[:1]


@pytest.mark.nightly_after(3)
@pytest.mark.parametrize("layout", [{"tp": 2}, {"pp": 2}, {"tp": 2, "pp": 2}], ids=str)
@pytest.mark.slow
def test_ranks_give_each_row_the_same_tables(kind, changed, layout, tmp_path):
    if kind == "by layer" and "pp" in layout:
        pytest.skip("the layers of each kind are in other numbers in each stage")
    worker_families.save(changed, tmp_path)
    prompts = prompts_of(kind)
    ranks = parallel_tools.Ranks(tmp_path, **layout)
    try:
        assert serve(ranks.answer, prompts) == [generated(changed, prompt) for prompt in prompts]
    finally:
        ranks.close()


def test_the_rule_says_where_keys_differ(changed, kind):
    rules = {
        "dynamic": LengthClasses(ORIGINAL, grows=True),
        "longrope": LengthClasses(ORIGINAL),
        "by layer": LengthClasses(ORIGINAL),
        "phi3": LengthClasses(ORIGINAL, restarts=True),
    }
    model = worker_families.build(changed)
    assert follow_lengths(copy.deepcopy(model), 64)[1] == rules[kind]
    assert follow_lengths(model, ORIGINAL) is None
    assert follow_lengths(worker_families.build("llama-biased"), 64) is None


def test_a_row_that_should_have_been_restarted_is_an_error(monkeypatch):
    family, changes = MODELS["phi3"]
    name, values = worker_families.FAMILIES[family]
    monkeypatch.setitem(worker_families.FAMILIES, family, (name, {**values, **changes}))
    model = worker_tools.loaded(worker_families.build(family), max_model_len=64)
    runner = worker_tools.runner(model)
    with pytest.raises(RuntimeError, match="scheduler must preempt it"):
        serve(runner.answer, worker_tools.prompts((30,)))


@pytest.mark.parametrize("table", [8, ORIGINAL, ORIGINAL + 1, 60])
def test_tables_are_those_of_a_fresh_module(changed, kind, table):
    fresh = worker_families.build(changed)
    model = worker_families.build(changed)
    follow_lengths(model, 64)
    rotary = model.model.rotary_emb
    layer = "full_attention" if kind == "by layer" else ""
    positions = torch.arange(table)
    cos, sin = call_rotary(
        fresh.model.rotary_emb, torch.zeros(1, 1, 1), positions[None], layer or "full"
    )
    made = rope_table(rotary, layer or "full", 64, torch.float32)
    got_cos, got_sin = made.at(positions, torch.full_like(positions, table))
    assert torch.equal(got_cos[:, 0], cos[0])
    assert torch.equal(got_sin[:, 0].abs(), sin[0].abs())
    assert by_length(rotary) is not None


class Rotary(torch.nn.Module):
    """Returns its positions."""

    def __init__(self, sections):
        super().__init__()
        self.mrope_section = sections

    def forward(self, x, position_ids):
        return x, position_ids


@pytest.mark.parametrize(
    ("sections", "shape"),
    [
        (None, (1, 5)),
        ([2, 1, 1], (3, 1, 5)),
        ([1, 1, 1, 1], (4, 1, 5)),
        ({"full": [2, 2]}, (2, 1, 5)),
    ],
)
def test_a_module_with_sections_gets_a_position_for_each(sections, shape):
    """Not every version of transformers repeats them in the module."""
    positions = torch.arange(5)[None]
    _, given = call_rotary(Rotary(sections), torch.zeros(1), positions, "full")
    assert torch.equal(given, positions.expand(shape))
