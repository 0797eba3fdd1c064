"""Step kernels are used if they are correct, and yield the tokens of torch; without them torch computes."""

from __future__ import annotations

import functools
import logging

import numpy as np
import pytest
import state_families  # noqa: F401 - adds its families
import torch
import worker_families
import worker_tools
from worker_driver import Driver, Request

from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_torch_base.attention.base import AttentionBatch
from tenonry_torch_base.kernel_parts import AttentionHalfParts, DeltaRuleHalfParts
from tenonry_torch_base.step_kernels import DeltaRuleParts, StepKernels, makes
from tenonry_worker_torch.changes import Changes
from tenonry_worker_torch.fuse.rope import RopeTable
from tenonry_worker_torch.kv_groups import GroupLayout
from tenonry_worker_torch.step_kernels import FoundKernels
from tenonry_worker_torch_cpu.kernels.attention import (
    KernelAttention,
    attention_layer,
    attention_parts,
    candidates,
)
from tenonry_worker_torch_cpu.kernels.chooser import KernelChooser
from tenonry_worker_torch_cpu.kernels.float32 import float32_parts
from tenonry_worker_torch_cpu.kernels.half import MixerHalf
from tenonry_worker_torch_cpu.kernels.mixer import KernelDeltaRule
from tenonry_worker_torch_cpu.kernels.norm import KernelNorm
from tenonry_worker_torch_cpu.kernels.trial import Candidates, prefers_kernel

pytestmark = pytest.mark.slow  # whole models

CPU = torch.device("cpu")
WAYS = {
    "one big batch": {},
    "chunked prefill": {"budget": 7},
    "three steps in flight": {"depth": 3, "budget": 20},
    "preempted": {"budget": 11, "depth": 2, "preempt_every": 5},
}
NUM_BLOCKS = 512
needs_library = pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built")


class Raising(CpuKernels):
    """Experts that fail when they are called."""

    name = "raising"

    def experts(self, parts):
        def fail(_):
            raise ValueError("no such instruction")

        return fail


class Wrong(StepKernels):
    """A delta rule that makes too much."""

    name = "wrong"

    @classmethod
    def refusal(cls):
        return None

    @makes(DeltaRuleParts)
    def delta_rule(self, parts):
        kernel = CpuKernels().make(parts)
        return lambda *given: kernel(*given) * 1.5

    @makes(DeltaRuleHalfParts)
    def delta_rule_half(self, parts):
        kernel = CpuKernels().make(parts)
        return lambda *given: kernel(*given) * 1.5

    @makes(AttentionHalfParts)
    def attention_half(self, parts):
        kernel = CpuKernels().make(parts)
        return lambda *given: kernel(*given) * 1.5


@functools.cache
def model_of(family, kernels="own"):
    chosen = {"own": CpuKernels, "wrong": Wrong, "raising": Raising}[kernels]()
    return worker_tools.loaded(worker_families.build(family), kernels=FoundKernels(chosen, True))


def kernels_of(model):
    paths = sum(isinstance(mixer.path, KernelDeltaRule) for mixer in model.mixers)
    layers = getattr(model.forward, "layers", ())
    experts = sum(layer.feed_forward_kernel is not None for layer in layers)
    before = sum(isinstance(layer.before_attention, KernelNorm) for layer in layers)
    attends = sum(isinstance(layer.attention, KernelAttention) for layer in layers)
    return paths, experts, before, attends


def halves_of(model):
    return sum(layer.first_half_kernel is not None for layer in model.forward.layers)


def serve(model, **way):
    """With room for every row in a slab."""
    runner = worker_tools.runner(model, groups=GroupLayout(2), num_blocks=NUM_BLOCKS)
    driver = Driver(runner.answer, max_num_seqs=6, num_blocks=NUM_BLOCKS, block_size=4, **way)
    requests = [
        Request(number + 1, prompt, max_tokens=worker_tools.OUTPUT_LENGTH)
        for number, prompt in enumerate(worker_tools.prompts())
    ]
    return [request.output for request in driver.run(requests)]


@needs_library
@pytest.mark.parametrize("way", WAYS)
def test_tokens_equal_generate_with_kernels(way):
    model = model_of("qwen3_next")
    assert kernels_of(model) == (2, 3, 3, 1)
    assert halves_of(model) == 3
    assert serve(model, **WAYS[way]) == worker_tools.generated("qwen3_next")


@needs_library
@pytest.mark.parametrize("way", WAYS)
def test_tokens_equal_generate_with_kernels_between_the_projections(way, monkeypatch):
    model = model_of("qwen3_next")
    for layer in model.forward.layers:
        monkeypatch.setattr(layer, "first_half_kernel", None)
    assert serve(model, **WAYS[way]) == worker_tools.generated("qwen3_next")


@needs_library
def test_halves_are_used_whenever_rows_only_decode(monkeypatch):
    """Also where the rows of the batch are in another order than their states."""
    model = model_of("qwen3_next")
    half = next(layer for layer in model.forward.layers if hasattr(layer.attention, "mixer"))
    used = []
    kernel = half.first_half_kernel.kernel

    def counted(hidden, window, matrix, rows):
        used.append(None if rows is None else rows.tolist())
        return kernel(hidden, window, matrix, rows)

    monkeypatch.setattr(half, "first_half_kernel", MixerHalf(half.attention.mixer, counted))
    worker_tools.runner(model, groups=GroupLayout(2), num_blocks=NUM_BLOCKS)
    states = half.attention.mixer.pools
    assert states
    hidden = torch.randn(3, half.attention.mixer.hidden_size)
    made = []
    for rows in ([0, 1, 2], [2, 0, 1], [0, 2, 4]):
        for pool in states.values():
            pool.copy_(torch.arange(len(pool)).view(-1, *[1] * (pool.dim() - 1)) * 0.1)
        batch = AttentionBatch(
            row=np.array(rows, np.int32),
            num_tokens=np.ones(3, np.int32),
            start=np.full(3, 5, np.int32),
            seq_lens=np.full(3, 6, np.int32),
            block_table=np.zeros((6, 4), np.int32),
            slot_mapping=np.zeros(3, np.int64),
            generation=np.array(rows),
            put=lambda _, array: torch.from_numpy(array),
        )
        model.states.plan(batch)
        order = torch.tensor(rows).argsort()
        given = hidden.index_select(0, torch.tensor(rows) % 3)
        made.append(half.first_half_kernel(given, None, None)[order])
    assert used == [None, [2, 0, 1], [0, 2, 4]]
    torch.testing.assert_close(made[0], made[1])
    model.states.release()


@needs_library
def test_attention_of_short_rows_alone_is_left_to_the_kernel(monkeypatch):
    model = model_of("qwen3_next")
    for layer in model.forward.layers:
        monkeypatch.setattr(layer, "first_half_kernel", None)
    (attention,) = (
        layer.attention
        for layer in model.forward.layers
        if isinstance(layer.attention, KernelAttention)
    )
    longest = []
    spec = attention.layer.spec
    kernel = attention.kernel

    def counted(projected, cos, sin, held):
        longest.append(held.longest * len(projected) * spec.num_heads * spec.key_size)
        return kernel(projected, cos, sin, held)

    monkeypatch.setattr(attention, "kernel", counted)
    wanted = worker_tools.generated("qwen3_next")
    assert serve(model) == wanted
    steps = len(longest)
    bound = sorted(longest)[steps // 2]
    assert bound < max(longest)
    monkeypatch.setattr("tenonry_worker_torch_cpu.kernels.attention.MAX_ELEMENTS", bound)
    longest.clear()
    assert serve(model) == wanted
    assert 0 < len(longest) < steps
    assert max(longest) <= bound


@needs_library
@pytest.mark.parametrize("family", ["mistral", "gemma2", "gpt_oss"])
def test_attention_that_sees_a_part_of_its_keys_stays_with_torch(family):
    assert kernels_of(model_of(family))[3] == 0


@needs_library
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_plain_attention_gets_a_kernel_in_every_layer(family):
    model = model_of(family)
    assert kernels_of(model)[3] == halves_of(model) == len(model.forward.layers)
    assert serve(model, **WAYS["preempted"]) == worker_tools.generated(family)


@needs_library
def test_tokens_equal_generate_with_kernels_for_a_part_of_the_layers():
    model = model_of("qwen3_5_text")
    assert kernels_of(model) == (2, 0, 3, 1)
    assert halves_of(model) == 3
    assert serve(model, **WAYS["preempted"]) == worker_tools.generated("qwen3_5_text")


@needs_library
def test_kernel_that_computes_otherwise_is_not_used(caplog):
    with caplog.at_level(logging.INFO, "tenonry.worker"):
        model = model_of("qwen3_next", "wrong")
    assert kernels_of(model) == (0, 0, 0, 0)
    assert (
        "Step kernels 'wrong': none; with torch: "
        "2 × delta rule, 1 × attention, 3 × experts, 7 × norm, 3 × first half" in caplog.text
    )
    assert halves_of(model) == 0
    assert serve(model) == worker_tools.generated("qwen3_next")


@needs_library
def test_kernels_are_taken_back_where_the_whole_model_differs(monkeypatch, caplog):
    """The parts agree and the model does not: as if a part were compared with inputs that hide something."""
    monkeypatch.setattr(
        "tenonry_worker_torch_cpu.kernels.chooser.prefers_kernel", lambda *_, **__: True
    )
    model = model_of.__wrapped__("qwen3_next", "wrong")
    assert kernels_of(model) == (0, 0, 0, 0)
    assert halves_of(model) == 0
    assert (
        "Qwen3NextForCausalLM: model pass 'kernels' changes results and is left out" in caplog.text
    )


@needs_library
def test_kernel_whose_trial_fails_is_left_out_with_one_warning(caplog):
    model = model_of("qwen3_next", "raising")
    assert kernels_of(model) == (2, 0, 3, 1)
    (warning,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert (
        warning.getMessage()
        == "Step kernels 'raising' (" + CpuKernels().description
        + "): experts is left to torch, its trial failed: "
        "ValueError: no such instruction"
    )
    assert serve(model) == worker_tools.generated("qwen3_next")


@needs_library
@pytest.mark.parametrize("positions", [3, 4, 20])
def test_attention_is_tried_with_rows_no_longer_than_its_rotation_table(positions):
    model = model_of("qwen3")
    (rope,) = model.forward.ropes.values()
    short = RopeTable(rope.cos[:positions], rope.sin[:positions])
    own = model.forward.layers[0].attention.own
    assert attention_layer(own, short) is not None
    made = CpuKernels().make(attention_parts(own))
    compared = functools.partial(candidates, own, made, short)
    assert prefers_kernel(compared, is_timed=False)
    assert attention_layer(own, RopeTable(rope.cos[:2], rope.sin[:2])) is None


@needs_library
def test_model_in_16_bits_keeps_the_operations_of_torch():
    module = worker_families.build("qwen3_next", dtype=torch.bfloat16)
    model = worker_tools.loaded(module, kernels=FoundKernels(CpuKernels(), True))
    assert kernels_of(model) == (0, 0, 0, 0)


def test_slower_kernel_is_not_preferred():
    def candidates(_):
        x = torch.ones(1)
        return Candidates(lambda: (x,), lambda: (sum(x for _ in range(50)) / 50,))

    assert prefers_kernel(candidates, is_timed=False)
    assert not prefers_kernel(candidates, is_timed=True)


@needs_library
def test_model_with_adapters_keeps_the_experts_that_they_may_add_to():
    module = worker_families.build("qwen3_next")
    model = worker_tools.loaded(module)
    changes = Changes()
    chooser = KernelChooser(FoundKernels(CpuKernels(), True))
    chooser.apply(float32_parts(model.forward, model.mixers, has_adapters=True), changes)
    assert kernels_of(model) == (2, 0, 3, 1)
    assert halves_of(model) == 0
    changes.undo()
    assert kernels_of(model) == (0, 0, 0, 0)
    chooser.apply(float32_parts(model.forward, model.mixers), changes)
    assert kernels_of(model) == (2, 3, 3, 1)
