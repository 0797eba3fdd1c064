"""Checkpoint parts that a rank reads, and the devices of ranks."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest
import torch
import worker_families

from tenonry.errors import ConfigError, ModelError
from tenonry_torch_base.checkpoint import Checkpoint
from tenonry_torch_base.device import choose_device
from tenonry_torch_base.parallel.groups import Link, Parallel, TensorGroup
from tenonry_torch_base.parallel.shard import Shard
from tenonry_torch_base.renaming import Renaming
from tenonry_worker_torch.loading.load import load_model
from tenonry_worker_torch.loading.rank_model import RankModel, parts_of_source

CPU = torch.device("cpu")


def load(folder, tp_rank=0, tp=1, stage=0, pp=1, load_format="auto"):
    place = Parallel(TensorGroup(tp_rank, tp), Link(stage, pp))
    return load_model(
        str(folder), load_format=load_format, dtype="float32", device=CPU, seed=3, parallel=place
    )


def skeleton(family):
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    name, values = worker_families.FAMILIES[family]
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**values))


def test_pieces_of_all_ranks_are_the_checkpoint(tmp_path):
    """Experts are stored one by one, and stacked on loading."""
    worker_families.save("mixtral", tmp_path)
    whole, pieces = worker_families.build("mixtral"), [load(tmp_path, rank, 2) for rank in range(2)]
    experts = [model.model.layers[1].mlp.experts for model in (whole, *pieces)]
    gate, up = experts[0].gate_up_proj.chunk(2, 1)
    for part, full in ((0, gate), (1, up)):
        assert torch.equal(
            torch.cat([each.gate_up_proj.chunk(2, 1)[part] for each in experts[1:]], 1), full
        )
    assert torch.equal(torch.cat([each.down_proj for each in experts[1:]], 2), experts[0].down_proj)
    assert torch.equal(torch.cat([model.lm_head.weight for model in pieces]), whole.lm_head.weight)


def test_a_stage_asks_for_its_own_tensors_only(tmp_path):
    worker_families.save("llama", tmp_path)
    model = skeleton("llama")
    rank_model = RankModel(model, model.config, Parallel(TensorGroup(), Link(1, 2)))
    with ExitStack() as files:
        names = set(rank_model.stored(Checkpoint(tmp_path, model), files))
    assert "model.layers.2.mlp.up_proj.weight" in names
    assert not any(
        name.startswith(("model.layers.0.", "model.layers.1.", "model.embed_tokens"))
        for name in names
    )


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_the_head_of_the_last_stage_may_be_the_embedding_of_the_first(tmp_path, load_format):
    worker_families.save("llama-biased", tmp_path)
    first, last = (load(tmp_path, stage=stage, pp=2, load_format=load_format) for stage in range(2))
    assert torch.equal(first.model.embed_tokens.weight, last.lm_head.weight)
    one = load(tmp_path, load_format=load_format)
    assert torch.equal(one.lm_head.weight, last.lm_head.weight)


def test_random_weights_are_those_of_the_architecture(tmp_path):
    """Norms start at one, biases at zero, the rest around zero; equal seeds yield equal weights."""
    worker_families.save("llama-biased", tmp_path)
    state = torch.random.get_rng_state()
    model, again = load(tmp_path, load_format="dummy"), load(tmp_path, load_format="dummy")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (model.model.norm.weight == 1).all()
    assert not model.model.layers[0].self_attn.q_proj.bias.any()
    weight = model.model.layers[0].mlp.up_proj.weight
    assert 0.01 < float(weight.std()) < 0.03
    assert torch.equal(weight, again.model.layers[0].mlp.up_proj.weight)
    assert not torch.equal(weight, model.model.layers[1].mlp.up_proj.weight)


def test_tensors_that_are_rearranged_cannot_be_read_in_pieces():
    renaming = Renaming(skeleton("mixtral"))
    key = "model.layers.0.block_sparse_moe.experts.1.w1.weight"
    name, converter = renaming.target(key)
    assert name == "model.layers.0.mlp.experts.gate_up_proj"
    assert parts_of_source(key, converter, Shard(-2, 0, 2, parts=2)) == 1
    assert parts_of_source(key, converter, None) == 1
    with pytest.raises(ModelError, match=r"is rearranged on loading .* use tensor_parallel_size=1"):
        parts_of_source(key, converter, Shard(-2, 0, 2))  # gate and up would be cut as one


def test_weights_that_do_not_fit_are_named(tmp_path):
    worker_families.save("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(
        ModelError, match=r"of the tensors that config\.json asks for .* such as model\.layers\.3"
    ):
        load(tmp_path, 1, 2)


def test_ranks_need_a_device_each(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto", 1, 2) == torch.device("cuda:1")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(
        ConfigError, match="cuda:2 does not exist: this node has 2 CUDA devices, and 4 ranks need 4"
    ):
        choose_device("cuda", 2, 4)
    with pytest.raises(
        ConfigError,
        match="device=cuda:0 is one device, but the engine has 2 ranks; use device=cuda",
    ):
        choose_device("cuda:0", 0, 2)
