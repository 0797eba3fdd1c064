"""Distribution of the stack, and the requirements of a stage."""

from __future__ import annotations

import pytest
import torch
import worker_families
from torch import nn

from tenonry.errors import ModelError
from tenonry_torch_base.parallel.groups import Link
from tenonry_torch_base.parallel.stage import Entry, Skipped, keep_stage, stage_layers, stage_of


def skeleton(family="llama"):
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    name, values = worker_families.FAMILIES[family]
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**values))


@pytest.mark.parametrize(("count", "stages"), [(3, 2), (32, 4), (7, 3), (5, 5)])
def test_stages_are_neighbours_as_even_as_possible(count, stages):
    layers = [stage_layers(count, stage, stages) for stage in range(stages)]
    assert [number for part in layers for number in part] == list(range(count))
    sizes = [len(part) for part in layers]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_each_stage_keeps_its_own_and_nothing_else():
    first, last = skeleton(), skeleton()
    keep_stage(first, Link(0, 2))
    keep_stage(last, Link(1, 2))
    names = [
        {name.split(".")[2] for name in model.state_dict() if ".layers." in name}
        for model in (first, last)
    ]
    assert names == [{"0", "1"}, {"2"}]
    assert {name for name in first.state_dict() if ".layers." not in name} == {
        "model.embed_tokens.weight"
    }
    assert {name for name in last.state_dict() if ".layers." not in name} == {
        "model.norm.weight",
        "lm_head.weight",
    }
    assert isinstance(last.model.layers[1], Entry)
    assert stage_of(last).own("abc") == ["c"]
    assert stage_of(skeleton()).own("abc") == ["a", "b", "c"]


def test_fewer_layers_than_stages_are_refused():
    with pytest.raises(
        ModelError, match="has 3 layers, but pipeline_parallel_size=4; each stage needs a layer"
    ):
        keep_stage(skeleton(), Link(0, 4))


def test_layers_that_exchange_more_are_refused_by_what_it_is():
    model = skeleton()
    plan = model.config.base_model_pp_plan | {
        "layers": (["hidden_states", "router_state"], ["hidden_states"])
    }
    model.config.base_model_pp_plan = plan
    with pytest.raises(ModelError, match="exchange router_state besides hidden states"):
        keep_stage(model, Link(0, 2))


def test_weights_that_the_plan_does_not_place_are_refused_by_name():
    model = skeleton()
    model.model.side = nn.Linear(2, 2, device="meta")
    with pytest.raises(ModelError, match="does not say which stage has 'side'"):
        keep_stage(model, Link(0, 2))


def test_what_only_the_first_stage_could_make_is_refused_when_a_layer_is_given_it():
    skipped, hidden = Skipped(nn.Linear(2, 2), "Strange"), torch.zeros(1, 3, 2)
    with pytest.raises(ModelError, match="Strange passes per_layer_input to its layers"):
        skipped(
            hidden,
            attention_mask=None,
            position_embeddings=(hidden, hidden),
            per_layer_input=hidden,
        )
    with pytest.raises(ModelError, match="passes argument 2 to its layers"):
        skipped(hidden, {"a": hidden})
    assert skipped(hidden, position_ids=hidden, use_cache=False) is hidden


def test_plain_attributes_of_a_skipped_layer_can_still_be_looked_at():
    layer = nn.Linear(2, 2)
    layer.attention_type = "sliding_attention"
    assert Skipped(layer, "Family").attention_type == "sliding_attention"
