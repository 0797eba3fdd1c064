"""Facts reported without reading a weight equal those of loading."""

from __future__ import annotations

import json
import resource

import msgspec
import pytest
import state_families
import torch
import worker_families
import worker_tools
import worker_wrappers

from tenonry.errors import ConfigError, ModelError
from tenonry.info import WorkerFacts
from tenonry_testkit.tiers import nightly_unless
from tenonry_worker_torch.loading.examine import max_stages, tensor_parallel_sizes
from tenonry_worker_torch.worker import TorchWorker


def config_only(folder, family, families=worker_families.FAMILIES, **changes):
    """The folder of a model whose weights were never written."""
    from transformers import CONFIG_MAPPING

    name, values = families[family]
    config = CONFIG_MAPPING[name](**(values | changes))
    config.architectures = [type(skeleton(config)).__name__]
    config.save_pretrained(folder)
    return worker_tools.context(folder, load_format="dummy")


def skeleton(config):
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    "family",
    nightly_unless(lambda family: family in worker_families.USUAL, worker_families.FAMILIES),
)
@pytest.mark.slow
@pytest.mark.nightly_after(4)
def test_facts_of_a_family_are_those_of_its_loaded_model(family, tmp_path):
    worker_families.save(family, tmp_path)
    # Kernels of batch invariance lay weights out anew, and modules lose theirs.
    worker = TorchWorker(worker_tools.context(tmp_path, batch_invariant=False))
    facts = worker.examine()
    worker.load()
    assert list(facts.groups) == worker.kv_cache_groups()
    weights = list(worker.model.module.parameters())
    assert facts.num_parameters == sum(weight.numel() for weight in weights)
    assert facts.weight_bytes == sum(weight.nbytes for weight in weights)
    assert facts.architecture == type(worker.model.module).__name__
    assert facts.model_type == worker.model.module.config.model_type
    assert facts.features["dtype"] == "float32"
    served = msgspec.convert(worker.model_facts(), WorkerFacts)
    assert served == msgspec.structs.replace(facts, features=served.features)
    assert served.features.items() <= facts.features.items()
    worker.shutdown()


@pytest.mark.parametrize(
    "wrapper", nightly_unless(lambda name: name in worker_wrappers.USUAL, worker_wrappers.WRAPPERS)
)
@pytest.mark.slow
@pytest.mark.nightly_after(2)
def test_facts_of_a_wrapper_are_those_of_its_text_part(wrapper, tmp_path):
    """Towers are neither counted nor looked at."""
    worker_wrappers.build(wrapper).save_pretrained(tmp_path)
    worker = TorchWorker(worker_tools.context(tmp_path))
    facts = worker.examine()
    worker.load()
    assert list(facts.groups) == worker.kv_cache_groups()
    assert facts.num_parameters == sum(
        weight.numel() for weight in worker.model.module.parameters()
    )
    worker.shutdown()


@pytest.mark.parametrize("family", ["llama", "mixtral"])
@pytest.mark.slow
def test_a_model_that_was_examined_loads_as_one_that_was_not(family, tmp_path):
    """The state that `examine` keeps for `load` has no setting of its run left."""
    worker_families.save(family, tmp_path)
    modules = []
    for looks in (0, 2):
        worker = TorchWorker(worker_tools.context(tmp_path))
        for _ in range(looks):
            worker.examine()
        worker.load()
        modules.append(worker.model.module)
        worker.shutdown()
    settings = [module.config.to_dict() for module in modules]
    assert settings[0] == settings[1]
    ways = [module.config._experts_implementation for module in modules]
    assert ways[0] == ways[1]
    for one, other in zip(*(module.parameters() for module in modules), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("family", "changes", "sizes"),
    [
        ("llama", {}, [1, 2, 4]),
        (
            "llama",
            {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 8},
            [1, 2, 4, 8],
        ),
        ("llama", {"intermediate_size": 98}, [1, 2]),  # heads can be cut in four, 98 cannot
        ("gpt2", {}, [1]),
    ],
)
def test_sizes_are_those_that_can_be_cut(family, changes, sizes, tmp_path):
    facts = TorchWorker(config_only(tmp_path, family, **changes)).examine()
    assert facts.features["tensor_parallel"] == sizes


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({}, True),  # a share of the memory holds snapshots
        ({"state_cache_memory_bytes": 1 << 20}, True),
        ({"state_cache_memory_bytes": 0}, False),
        ({"enable_prefix_caching": False}, False),
    ],
)
@pytest.mark.parametrize("family", ["qwen3_next", "mamba2"])
@pytest.mark.slow
def test_prefixes_of_states_are_shared_unless_switched_off(family, settings, shares, tmp_path):
    config_only(tmp_path, family, state_families.FAMILIES)
    context = worker_tools.context(tmp_path, load_format="dummy", **settings)
    assert TorchWorker(context).examine().features["prefix_caching"] is shares


def test_the_most_stages_are_the_layers():
    from transformers import CONFIG_MAPPING

    name, values = worker_families.FAMILIES["llama"]
    model = skeleton(CONFIG_MAPPING[name](**values))
    assert max_stages(model) == values["num_hidden_layers"]
    assert tensor_parallel_sizes(model)[0] == 1


@pytest.mark.integration
def test_a_refusal_is_the_one_of_loading(tmp_path):
    from transformers import RwkvConfig

    config = RwkvConfig(hidden_size=32, vocab_size=96, num_hidden_layers=2)
    config.architectures = ["RwkvForCausalLM"]
    config.save_pretrained(tmp_path)
    context = worker_tools.context(tmp_path, load_format="dummy")
    with pytest.raises((ModelError, ConfigError)) as examined:
        TorchWorker(context).examine()
    with pytest.raises((ModelError, ConfigError)) as loaded:
        TorchWorker(context).load()
    assert str(examined.value) == str(loaded.value)


@pytest.mark.slow
def test_a_model_of_a_hundred_billion_parameters_takes_no_memory(tmp_path):
    """Shapes only: its weights would be 500 GB."""
    context = config_only(
        tmp_path, "llama", hidden_size=16384, intermediate_size=53248, num_hidden_layers=40,
        num_attention_heads=128, num_key_value_heads=8, vocab_size=128256, max_position_embeddings=131072,
    )  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    facts = TorchWorker(context).examine()
    assert facts.num_parameters > 125e9
    assert [group.bytes_per_token for group in facts.groups] == [40 * 2 * 8 * 128 * 4]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB


def test_latent_attention_is_noted_with_its_sizes(tmp_path):
    """K and V of every head are kept: what the latents alone would take is in the note."""
    facts = TorchWorker(config_only(tmp_path, "deepseek_v3")).examine()
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    kept = sum(group.bytes_per_token for group in facts.groups)
    latents = (
        (config["kv_lora_rank"] + config["qk_rope_head_dim"]) * config["num_hidden_layers"] * 4
    )
    (note,) = facts.features["notes"]
    assert f"{kept:,} bytes per token; the latents alone would take {latents:,}" in note
    plain = TorchWorker(config_only(tmp_path / "plain", "llama")).examine()
    assert "notes" not in plain.features
