"""Models in bfloat16 with step kernels: linear layers, attention over blocks and whole layers compute the results of
the model's own code, except for rounding; parts with wrong or slower kernels are left to torch.
"""

from __future__ import annotations

import functools
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import worker_families
import worker_tools
from worker_tools import LOST, lost, serve

from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_torch_base.attention.groups import GroupedBackend
from tenonry_torch_base.buffers import HostBuffers
from tenonry_torch_base.kernel_parts import LinearParts
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.fuse.layer import KERNEL_TOKENS
from tenonry_worker_torch.step_kernels import FoundKernels
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend
from tenonry_worker_torch_cpu.kernels import trial
from tenonry_worker_torch_cpu.kernels.linear import KernelLinear
from tenonry_worker_torch_cpu.kernels.paged import cpu_backends
from tenonry_worker_torch_cpu.kernels.rows import COUNTS, Budget
from tenonry_worker_torch_cpu.kernels.trial import Candidates
from tenonry_worker_torch_cpu.packing.onednn import PackedLinear, can_pack
from tenonry_worker_torch_cpu.packing.widened import BlockedLinear

CPU = torch.device("cpu")
WAYS = {
    "one big batch": {},
    "chunked prefill": {"budget": 7},
    "three steps in flight": {"depth": 3, "budget": 20},
    "preempted": {"budget": 11, "depth": 2, "preempt_every": 5},
}
# Layers with kernels for all of them, for attention and for that of prompts, and of linear layers, the head included.
FAMILIES = {
    "llama": (3, 3, 3, 13),
    "llama-biased": (3, 3, 3, 13),
    "qwen2": (3, 3, 3, 13),
    "qwen3": (3, 3, 3, 13),
    "mistral": (3, 3, 3, 13),
    "phi3": (3, 3, 3, 13),
    "gemma3": (0, 3, 3, 13),  # norms behind both halves
    "gemma2": (0, 0, 0, 13),  # a soft cap
}
# As oneDNN lays weights out, and as we do where it has no bfloat16.
LAYOUTS = {
    "onednn": pytest.mark.skipif(
        not can_pack(torch.bfloat16, CPU), reason="oneDNN has no bfloat16 here"
    ),
    "blocks": (),
}
layouts = pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=marks) for name, marks in LAYOUTS.items()]
)
pytestmark = pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built")


class Wrong(CpuKernels):
    """Layers that make something else."""

    name = "wrong"

    def layer(self, parts):
        kernel = super().layer(parts)
        return lambda *given: kernel(*given).flip(-1)


class WrongPrompts(CpuKernels):
    """Attention of prompts that makes something else where tokens come before them."""

    name = "wrong-prompts"

    def chunk_attention(self, parts):
        kernel = super().chunk_attention(parts)

        def made(query, chunks, keys, out):
            kernel(query, chunks, keys, out)
            if int(keys.lengths[0]) > int(chunks.counts[0]):
                out.neg_()

        return made


def module_of(family):
    """With feed-forward parts that end at a block's end."""
    name, values = worker_families.FAMILIES[family]
    other = f"packed-{family}"
    worker_families.OTHERS[other] = (name, values | {"intermediate_size": 128})
    return worker_families.build(other, seed=worker_families.SEEDS[family], dtype=torch.bfloat16)


@functools.cache
def model_of(family, kept="auto", layout=""):
    """`layout`: "" for this machine's own."""
    kernels = FoundKernels(CpuKernels(), True)
    with pytest.MonkeyPatch.context() as patch:
        if layout == "blocks":
            patch.setattr("tenonry_worker_torch_cpu.packing.widened.can_pack", lambda *_: False)
        return worker_tools.loaded(module_of(family), kernels=kernels, kv_cache_dtype=kept)


def used(model):
    layers = model.forward.layers
    whole = sum(layer.kernel is not None for layer in layers)
    places = [model.forward.end.head]
    for layer in layers:
        places += [layer.attention.qkv, layer.attention.out, layer.mlp.gate_up, layer.mlp.down]
    (attends,) = {len(part._paged) for part in cpu_backends(model.backend)}
    (chunked,) = {len(part._chunked) for part in cpu_backends(model.backend)}
    return whole, attends, chunked, sum(isinstance(place, KernelLinear) for place in places)


@layouts
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
def test_kernels_are_used_where_they_know_the_layer(family, layout):
    model = model_of(family, layout=layout)
    assert used(model) == FAMILIES[family]
    kind = PackedLinear if layout == "onednn" else BlockedLinear
    assert type(model.forward.end.head.own) is kind


def test_head_may_be_at_par_where_its_kernel_makes_multi_token_steps_possible(monkeypatch):
    """Times allowed for one row, by the outputs of the layer."""
    seen = {}

    def most_rows(_budget, candidates_for, *, times=1.0, **_):
        seen[candidates_for(1).own()[0].shape[1]] = times
        return KERNEL_TOKENS

    monkeypatch.setattr(Budget, "most_rows", most_rows)
    assert "1 × rounds" in model_of.__wrapped__("llama").chosen_kernels
    assert seen.pop(96) == trial.PAR
    assert set(seen.values()) == {1.0}


@layouts
def test_what_was_chosen_is_said_by_shape_and_number_of_rows(monkeypatch, layout):
    """A kernel that is slower for the head, and one that is for more than eight rows of gates."""
    by_outputs = {96: 0, 256: 8}

    def most_rows(_budget, candidates_for, **_):
        made = candidates_for(1).own()[0]
        return by_outputs.get(made.shape[1], KERNEL_TOKENS)

    monkeypatch.setattr(Budget, "most_rows", most_rows)
    text = model_of.__wrapped__("llama", layout=layout).chosen_kernels
    many = "to 128" if layout == "onednn" else "any"
    assert text == (
        f"Step kernels 'cpu' ({CpuKernels().description}): 12 × linear, 3 × attention, 3 × prefill, 3 × layer, "
        "1 × stack, 1 × prompts, 7 × norm, 3 × rotation, 3 × gate; rows, "
        f"more with torch: 128×64 {many}, 64×64 {many}, 256×64 to 8, 64×128 {many}, layer to 128, 96×64 to 0; "
        "with torch: 1 × linear"
    )


@layouts
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
@pytest.mark.nightly_after(20)
def test_tokens_are_the_best_ones_of_the_models_own_code(family, way, layout):
    """Except for rounding: prompts and decoded tokens together and apart, with rows of other lengths."""
    served = serve(model_of(family, layout=layout), **WAYS[way])
    reference = module_of(family).float()
    for request in served:
        assert len(request.output) == worker_tools.OUTPUT_LENGTH
        assert lost(reference, request) < LOST


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
@pytest.mark.slow
def test_kernels_read_and_write_kv_in_8_bits(family, way):
    model = model_of(family, "int8")
    assert used(model) == FAMILIES[family]
    reference = module_of(family).float()
    assert all(lost(reference, request) < LOST for request in serve(model, **WAYS[way]))


def test_other_kv_of_8_bits_is_left_to_torch():
    model = model_of("qwen3", "fp8")
    assert used(model) == (0, 0, 0, 13)
    assert "attention" not in model.chosen_kernels
    reference = module_of("qwen3").float()
    assert all(lost(reference, request) < LOST for request in serve(model))


def test_layers_run_in_one_call_when_rows_only_decode(monkeypatch):
    model = model_of("qwen3")
    monkeypatch.setattr(model.forward, "stack", None)
    seen = []
    for layer in model.forward.layers:
        kernel = layer.kernel

        def counted(hidden, cos, sin, kernel=kernel):
            made = kernel(hidden, cos, sin)
            seen.append((len(hidden), made is not None))
            return made

        monkeypatch.setattr(layer, "kernel", counted)
    serve(model)
    decoding = [is_used for count, is_used in seen if count <= 6]
    assert len(decoding) == 3 * (worker_tools.OUTPUT_LENGTH - 1)
    assert all(decoding)


def test_layers_with_block_tables_of_their_own_have_kernels():
    name, values = worker_families.FAMILIES["gemma3"]
    worker_families.OTHERS["packed-groups"] = (name, values)
    module = worker_families.build("packed-groups", seed=0, dtype=torch.bfloat16)
    model = build(
        module,
        BuildPlan(
            CpuBackend,
            HostBuffers(CPU, 1),
            max_model_len=64,
            fuse=True,
            skip_check=False,
            window_groups=True,
            kernels=FoundKernels(CpuKernels(), True),
        ),
    )
    assert isinstance(model.backend, GroupedBackend)
    assert used(model)[1:3] == (3, 3)


def test_kernels_that_are_wrong_are_left_to_torch():
    model = worker_tools.loaded(module_of("qwen3"), kernels=FoundKernels(Wrong(), True))
    assert used(model) == (0, 3, 3, 13)


def test_kernel_that_is_wrong_for_later_chunks_of_a_prompt_is_left_to_torch():
    model = worker_tools.loaded(module_of("qwen3"), kernels=FoundKernels(WrongPrompts(), True))
    assert used(model) == (3, 3, 0, 13)


def test_all_kernels_are_taken_back_where_the_whole_model_differs(monkeypatch, caplog):
    """For errors that a comparison of parts misses."""
    monkeypatch.setattr(Budget, "most_rows", lambda *_, **__: KERNEL_TOKENS)
    monkeypatch.setattr(Budget, "is_better", lambda *_, **__: True)
    model = worker_tools.loaded(module_of("qwen3"), kernels=FoundKernels(Wrong(), True))
    assert used(model) == (0, 0, 0, 0)
    assert model.backend.cache_sizes == CpuBackend.cache_sizes
    assert "model pass 'kernels' changes results and is left out" in caplog.text
    reference = module_of("qwen3").float()
    assert all(lost(reference, request) < LOST for request in serve(model))


@pytest.mark.parametrize(
    "kind", [pytest.param(PackedLinear, marks=LAYOUTS["onednn"]), BlockedLinear]
)
class TestBlocked:
    @pytest.mark.parametrize(("outputs", "inputs"), [(64, 32), (100, 40), (17, 34), (256, 96)])
    def test_blocks_are_the_weight_in_the_layout_that_kernels_know(self, kind, outputs, inputs):
        weight = torch.randn(outputs, inputs).bfloat16()
        found = kind(weight, None).blocked()
        rows = found.blocks.transpose(1, 2).reshape(found.blocks.shape[0] * 64, -1)
        assert torch.equal(rows[:outputs, :inputs], weight)
        assert not rows[outputs:].any()
        assert not rows[:, inputs:].any()

    def test_blocks_live_as_long_as_they_are_looked_at(self, kind):
        weight = torch.randn(512, 512).bfloat16()
        found = kind(weight, None).blocked()
        others = [torch.randn(512, 512) for _ in range(20)]
        rows = found.blocks.transpose(1, 2).reshape(512, 512)
        assert torch.equal(rows, weight)
        assert len(others) == 20

    def test_more_rows_than_were_tried_go_the_packed_way(self, kind):
        own = kind(torch.randn(32, 32).bfloat16(), None)

        def fail(*_):
            raise AssertionError

        layer = KernelLinear(own, fail, 4)
        x = torch.randn(5, 32).bfloat16()
        assert torch.equal(layer(x), own(x))
        assert torch.equal(layer.add(x, x), own.add(x, x))

    def test_rows_with_others_between_them_go_to_the_kernel(self, kind):
        """As those of a norm of few rows do."""
        own = kind(torch.randn(32, 32).bfloat16(), None)
        layer = KernelLinear(own, CpuKernels().make(LinearParts(own.blocked())), 4)
        own.__class__ = type(
            "NeverCalled", (kind,), {"__slots__": (), "__call__": None, "add": None}
        )
        x = torch.randn(4, 64).bfloat16().narrow(-1, 0, 32)
        assert torch.equal(layer(x), layer(x.contiguous()))
        assert torch.equal(layer.add(x, x), layer.add(x.contiguous(), x.contiguous()))


class TestRows:
    def test_kernels_are_used_up_to_the_rows_for_which_they_are_quick(self):
        def candidates(count):
            x = torch.ones(1)
            turns = 1 if count == 1 else 200
            return Candidates(
                lambda: (sum(x for _ in range(20)) / 20,),
                lambda: (sum(x for _ in range(turns)) / turns,),
            )

        assert Budget().most_rows(candidates, is_timed=True) == 1
        assert Budget().most_rows(candidates, is_timed=False) == KERNEL_TOKENS

    def test_kernel_that_is_wrong_for_some_rows_is_used_for_none(self):
        def candidates(count):
            x = torch.ones(1)
            return Candidates(lambda: (x,), lambda: (x * (1 + (count == COUNTS[-1])),))

        assert Budget().most_rows(candidates, is_timed=False) == 0

    def test_kernel_for_any_number_of_rows_must_be_right_and_if_timed_quicker(self):
        def candidates(turns, error=0.0):
            x = torch.ones(1)
            return Candidates(
                lambda: (sum(x for _ in range(20)) / 20,),
                lambda: (sum(x for _ in range(turns)) / turns + error,),
            )

        assert Budget().is_better(lambda: candidates(1), is_timed=True)
        assert not Budget().is_better(lambda: candidates(400), is_timed=True)
        assert Budget().is_better(lambda: candidates(400), is_timed=False)
        assert not Budget().is_better(lambda: candidates(1, 1.0), is_timed=False)
        same_calls = candidates(400)._replace(is_timed=False)
        assert Budget().is_better(lambda: same_calls, is_timed=True)

    @pytest.mark.parametrize(("kernel_s", "is_better"), [(1.0, True), (3.0, False)])
    def test_other_processes_neither_end_a_trial_nor_decide_it(
        self, kernel_s, is_better, monkeypatch
    ):
        """All runs but the fifth of each side take a hundred times as long, of which none is on a processor."""
        clock = SimpleNamespace(now=0.0, own=0, kernel=0)
        fake = SimpleNamespace(perf_counter=lambda: clock.now, thread_time=lambda: 0.0)
        monkeypatch.setattr(trial, "time", fake)

        def run(side, seconds):
            setattr(clock, side, getattr(clock, side) + 1)
            clock.now += seconds * (1 if getattr(clock, side) == 5 else 100)
            return ()

        candidates = Candidates(lambda: run("own", 2.0), lambda: run("kernel", kernel_s))
        assert trial.is_quicker(candidates) == is_better
        assert clock.own == clock.kernel == trial.REPEATS

    @pytest.mark.parametrize(("times", "most"), [(1.0, 0), (trial.PAR, KERNEL_TOKENS)])
    def test_kernel_that_others_need_may_be_at_par_for_one_row(self, times, most, monkeypatch):
        """A kernel that takes 1.1 times as long."""
        clock = SimpleNamespace(now=0.0)
        fake = SimpleNamespace(perf_counter=lambda: clock.now, thread_time=lambda: 0.0)
        monkeypatch.setattr(trial, "time", fake)

        def run(seconds):
            clock.now += seconds
            return (torch.ones(1),)

        made = Candidates(lambda: run(1.0), lambda: run(1.1))
        assert Budget().most_rows(lambda _: made, is_timed=True, times=times) == most
        assert Budget().is_better(lambda: made, is_timed=True)

    def test_trials_end_when_the_time_is_used_up(self):
        asked = []

        def candidates(count):
            asked.append(count)
            x = np.zeros(1)
            return Candidates(lambda: (torch.from_numpy(x),), lambda: (torch.from_numpy(x),))

        assert Budget(-1.0).most_rows(candidates, is_timed=True) == 0
        assert not asked

    def test_kernel_beside_which_torch_is_slow_is_tried_once_when_the_time_is_used_up(self):
        """And then used for the declared number of rows, unless it is wrong or slower."""
        asked = []

        def candidates(count, error=0.0, turns=1):
            asked.append(count)
            x = torch.ones(1)
            return Candidates(
                lambda: (sum(x for _ in range(20)) / 20,),
                lambda: (sum(x for _ in range(turns)) / turns + error,),
            )

        def most_rows(*given):
            made = functools.partial(candidates, **dict(given))
            return Budget(-1.0).most_rows(made, is_timed=True, if_untried=1000)

        assert most_rows() == 1000
        assert asked == [1]
        assert most_rows(("error", 1.0)) == 0
        assert most_rows(("turns", 200)) == 0


@pytest.mark.parametrize("limit_s", [1e-9, 0.4])
def test_head_in_blocks_has_its_kernel_for_any_rows_however_slow_the_machine_is(
    monkeypatch, limit_s
):
    """Trials of other parts may have used up the time."""
    monkeypatch.setattr("tenonry_worker_torch_cpu.packing.widened.can_pack", lambda *_: False)
    monkeypatch.setattr(Budget.__init__, "__defaults__", (limit_s,))
    model = worker_tools.loaded(module_of("llama"), kernels=FoundKernels(CpuKernels(), False))
    assert re.search(r" 96×64 (any|to \d+)", model.chosen_kernels)[1] == "any"
