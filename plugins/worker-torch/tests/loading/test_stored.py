"""Matrices of GGUF files in the layout of kernels from the start: no floats of them, and the same results."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import nn

from tenonry.errors import ModelError
from tenonry_hf_hub.gguf import folder_of
from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_testkit import gguf_files
from tenonry_worker_torch.fuse.linear import merge, take_weight
from tenonry_worker_torch.loading import stored
from tenonry_worker_torch.loading.load import load_model, look
from tenonry_worker_torch.loading.stored import StoredEmbedding, StoredLinear, all_to_floats

CPU = torch.device("cpu")
LAYERS = 7 * gguf_files.LAYERS  # linear ones, without the head
pytestmark = pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A function that loads a file of a kind, with kernels or with floats."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def load(kind, *, tied=False, kernels=True, dtype="bfloat16", tensors=None):
        path = gguf_files.write(
            tmp_path / f"{kind}-{tied}.gguf",
            kind=Kind[kind],
            tied=tied,
            tokenizer=False,
            tensors=tensors,
        )
        return load_model(
            str(folder_of(path)),
            load_format="auto",
            dtype=dtype,
            device=CPU,
            seed=0,
            found=look(str(folder_of(path)), load_format="auto"),
            kernels=CpuKernels() if kernels else None,
        )

    return load


def kinds_in(model):
    return [part for part in model.modules() if isinstance(part, StoredLinear | StoredEmbedding)]


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K"])
@pytest.mark.parametrize("tied", [False, True])
def test_no_matrix_is_stored_in_floats(kind, tied, made):
    model = made(kind, tied=tied)
    assert len(kinds_in(model)) == LAYERS + 2
    floats = {weight.untyped_storage().data_ptr(): weight for weight in model.parameters()}
    assert sum(each.untyped_storage().nbytes() for each in floats.values()) < 1 << 16
    assert model.lm_head.stored is not None
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


@pytest.mark.parametrize("tied", [False, True])
def test_the_models_own_code_computes_as_with_floats(tied, made):
    ids = torch.arange(12)[None]
    with torch.inference_mode():
        got = made("Q4_K", tied=tied)(ids).logits.float()
        wanted = made("Q4_K", tied=tied, kernels=False)(ids).logits.float()
    assert (got - wanted).norm() < 0.01 * wanted.norm()


def test_float32_stays_floats(made):
    assert not kinds_in(made("Q8_0", dtype="float32"))


def test_kinds_that_no_kernel_reads_stay_floats(made):
    assert not kinds_in(made("Q2_K"))


def test_a_layer_can_become_floats(made):
    model = made("Q8_0")
    layer = model.model.layers[0].self_attn.q_proj
    x = torch.randn(3, layer.in_features).bfloat16()
    with torch.inference_mode():
        wanted = layer(x)
    all_to_floats(model)
    assert layer.stored is None
    assert torch.equal(layer.weight, layer.numbers())
    with torch.inference_mode():
        assert (layer(x) - wanted).float().norm() < 0.01 * wanted.float().norm()  # rounded weights


@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_made_in_pieces(has_bias, made, monkeypatch):
    layer = made("Q8_0").model.layers[0].self_attn.q_proj
    bias = torch.randn(layer.out_features).bfloat16() if has_bias else None
    layer.bias = None if bias is None else torch.nn.Parameter(bias)
    x = torch.randn(2, 3, layer.in_features).bfloat16()
    with torch.inference_mode():
        whole = layer(x)
        monkeypatch.setattr(stored, "PIECE", 3 * layer.in_features)
        assert torch.allclose(layer(x).float(), whole.float(), rtol=0.01, atol=0.01)
        layer.to_floats()
        assert (layer(x) - whole).float().norm() < 0.01 * whole.float().norm()


def test_layers_merge_with_their_numbers(made):
    attention = made("Q5_0").model.layers[0].self_attn
    sources = [attention.q_proj, attention.k_proj]
    wanted = torch.cat([each.numbers() for each in sources])
    assert torch.equal(merge(sources).weight, wanted)
    assert all(each.stored is None for each in sources)


def test_a_layer_that_lost_its_weight_holds_none(made):
    layer = made("Q5_1").model.layers[0].mlp.down_proj
    held = weakref.ref(layer.stored.blocks)
    take_weight(layer)
    assert held() is None
    assert layer.weight.numel() == 0


def test_a_copy_is_a_plain_layer(made):
    """As comparisons on random weights make one."""
    layer = made("Q4_0").model.layers[0].mlp.up_proj
    copied = copy.deepcopy(layer)
    assert type(copied) is nn.Linear
    assert copied.weight.shape == layer.weight.shape


def test_bad_scales_name_file_and_tensor(made):
    import numpy as np

    name = "blk.0.ffn_up.weight"
    values = gguf_files.random_tensors("llama")[name]
    values[0, 0] = np.inf
    with (
        np.errstate(all="ignore"),
        pytest.raises(ModelError, match=r"Q8_0.*gguf: tensor model\.layers\.0\.mlp\.up_proj"),
    ):
        made("Q8_0", tensors={name: values})
