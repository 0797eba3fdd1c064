"""The self check compares served logits with the model's own attention: each of these models was once served wrongly,
and passed.
"""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools

from tenonry.errors import ModelError
from tenonry_torch_base.attention import masks
from tenonry_torch_base.attention.layer import LayerCalls
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_torch_base.parallel import stage
from tenonry_worker_torch.loading import self_check
from tenonry_worker_torch.loading.prompts import LONG, LONGEST, prompt_lengths, steps_of
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend
from tenonry_worker_torch_cpu.attention.slab_plan import SlabGroup


def one_cache_for_all_calls(monkeypatch):
    monkeypatch.setattr(LayerCalls, "take", lambda calls: calls.layers[0])


def masks_are_not_read(monkeypatch):
    monkeypatch.setattr(masks, "read_reach", lambda *_, **__: masks.CAUSAL)


def logits_of_all_positions(monkeypatch):
    monkeypatch.setattr(stage, "keeps_logits", lambda _: True)


MUTATIONS = {
    "diffllama": one_cache_for_all_calls,
    "hrm_text": one_cache_for_all_calls,
    "phimoe": masks_are_not_read,
    "gemma2": masks_are_not_read,
    "whisper": logits_of_all_positions,
}


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("family", MUTATIONS)
@pytest.mark.slow
def test_a_model_that_would_be_served_wrongly_does_not_start(family, fuse, monkeypatch):
    MUTATIONS[family](monkeypatch)
    with pytest.raises(ModelError, match=r"ForCausalLM fails the self check.*--skip-model-check"):
        worker_tools.loaded(worker_families.build(family), fuse=fuse)


def test_a_mistake_beyond_the_first_chunk_only_is_found(monkeypatch):
    """A cache that is written and never read hides much: here the second chunk is one position off."""
    model = worker_families.build("llama")
    original = type(model.model.rotary_emb).forward

    def shifted(module, x, position_ids):
        return original(module, x, position_ids + (position_ids[:, :1] > 0).long())

    loaded = worker_tools.loaded(model, fuse=False)
    monkeypatch.setattr(type(model.model.rotary_emb), "forward", shifted)
    check = self_check.SelfCheck(packed_run(loaded), reference(loaded))
    assert not check.agrees(loaded.forward)


def nothing_attended(*arguments):
    return torch.zeros_like(arguments[2])


def next_column_is_hidden(group):
    """As it is, but the mask stays."""
    group.entering = ()
    group.windowed.clear()
    group.longest += 1
    group.append += 1
    group.column += 1


SLAB_MISTAKES = {
    "decoding from slabs": (CpuBackend, "_attend", nothing_attended),
    "decoding from blocks": (CpuBackend, "decode_gathered", lambda *_: None),
    "one step more of the same rows": (SlabGroup, "move_on", next_column_is_hidden),
}


@pytest.mark.parametrize("mistake", SLAB_MISTAKES)
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_next"])
@pytest.mark.slow
def test_each_way_of_decoding_on_the_cpu_is_checked(family, mistake, monkeypatch):
    """Rows decode from slabs as long as there is room for them, and in the cache of the check there was none."""
    where, name, wrong = SLAB_MISTAKES[mistake]
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(ModelError, match="fails the self check"):
        worker_tools.loaded(worker_families.build(family))


@pytest.mark.parametrize("window", [None, 40, 60, 100, 200, 270])
def test_the_larger_cache_has_room_for_all_rows_in_slabs(window, monkeypatch):
    """Whatever slabs the prompts need; with a cache as large as the prompts there is none for the long one."""
    config = {"sliding_window": window, "max_position_embeddings": 512}
    name, values = worker_families.FAMILIES["mistral"]
    monkeypatch.setitem(worker_families.FAMILIES, "windowed", (name, values | config))
    gathered = []
    original = CpuBackend.plan

    def seen(backend, batch):
        plan = original(backend, batch)
        gathered.append(len(plan.decode_order))
        return plan

    monkeypatch.setattr(CpuBackend, "plan", seen)
    model = worker_families.build("windowed", seed=0)
    worker_tools.loaded(model, fuse=False, max_model_len=512)
    tight, roomy = gathered[:4], gathered[4:]  # steps
    assert min(tight[2:]) > 0
    assert roomy == [0] * 4


def reference(loaded):
    return self_check.reference_of(loaded.module, 96, loaded.parallel, 64, None)


def packed_run(loaded):
    from tenonry_worker_torch.loading.packed_run import PackedRun

    return PackedRun(loaded.backend, loaded.layers, loaded.buffers)


def test_the_reference_leaves_the_model_with_the_attention_that_it_had():
    loaded = worker_tools.loaded(worker_families.build("llama"))
    reference(loaded)
    assert loaded.module.config._attn_implementation == "tenonry"


def test_one_bad_prompt_is_not_outvoted_by_good_ones():
    """Errors are compared prompt by prompt: of three, only the long one may be beyond a window."""
    loaded = worker_tools.loaded(worker_families.build("llama"))
    wanted = reference(loaded)
    wanted.made[0][-1] *= 2.0
    check = self_check.SelfCheck(packed_run(loaded), wanted)
    with pytest.raises(ModelError, match=r"prompt 1 of 3 .*relative error 0\.5"):
        check.require(loaded.forward, "Llama")


@pytest.mark.parametrize(
    ("dtype", "errors", "worst"),
    [
        (torch.float32, [1e-4, 2e-3, 1e-4], 1),
        (torch.float32, [1e-4, 9e-4, 1e-4], None),
        (torch.bfloat16, [0.02, 0.15, 0.09], None),
        (torch.bfloat16, [0.02, 0.15, 0.12], 1),
        (torch.bfloat16, [0.02, 0.02, 0.3], 2),
        (torch.bfloat16, [float("inf"), 0.02, 0.02], 0),
    ],
)
def test_what_is_taken_for_rounding(dtype, errors, worst):
    check = self_check.SelfCheck(None, self_check.Reference([], [], [], dtype))
    assert check._worst(errors) == worst


@pytest.mark.parametrize("window", [None, 6, 60, 200, 4096])
def test_the_first_prompt_is_longer_than_a_window_that_is_not_too_long(window):
    class Config:
        sliding_window = window

    longest, *short = prompt_lengths(Config, 10_000)
    assert max(short) < longest <= LONGEST
    assert longest > (window if window and window < LONGEST - 20 else LONG - 1)
    assert prompt_lengths(Config, 12)[0] == 12


def test_every_token_is_computed_once_in_chunks_that_are_longer_than_half():
    lengths = [33, 5, 9]
    steps = steps_of(lengths)
    assert [sum(counts) for counts in zip(*steps, strict=True)] == lengths
    assert steps[-1][0] == 1
    assert min(steps[0][0], steps[1][0]) > 1


def test_errors_of_the_models_own_code_name_the_model():
    model = worker_families.build("llama")
    model.model.layers[1].mlp.forward = lambda x: {}["nothing"]
    with pytest.raises(ModelError, match=r"LlamaForCausalLM cannot run .* KeyError\('nothing'\)"):
        worker_tools.loaded(model)


@pytest.mark.parametrize("fuse", [True, False])
def test_errors_in_a_packed_batch_alone_name_the_model(fuse, monkeypatch):
    """Another worker may serve it: K/V of another type than the cache's is such an error."""

    def fails(*_):
        raise RuntimeError("expected to have the same dtype")

    monkeypatch.setattr(SdpaBackend, "write", fails)
    with pytest.raises(ModelError, match=r"LlamaForCausalLM cannot run .* the same dtype"):
        worker_tools.loaded(worker_families.build("llama"), fuse=fuse)


def test_infinite_and_undefined_logits_count_as_wrong():
    errors = self_check.relative_errors(torch.tensor([[1.0, float("nan")]]), torch.ones(1, 2))
    assert errors.tolist() == [float("inf")]


def test_layers_that_share_an_index_have_a_cache_each():
    """Row BF-5 requires one order: by index, and then by the order in which they run."""
    model = worker_families.build("llama")
    wanted = worker_tools.loaded(worker_families.build("llama"), fuse=False)
    model.model.layers[2].self_attn.layer_idx = 1
    loaded = worker_tools.loaded(model, fuse=False)
    assert [layer.spec.index for layer in loaded.layers.values()] == [0, 1, 2]
    assert loaded.layers.keys() == wanted.layers.keys()


def test_a_module_that_attends_several_times_has_as_many_layers():
    loaded = worker_tools.loaded(worker_families.build("diffllama"))
    names = [name for name in loaded.layers if name.startswith("model.layers.0.")]
    assert names == ["model.layers.0.self_attn", "model.layers.0.self_attn#2"]
    assert len(loaded.layers) == 6
