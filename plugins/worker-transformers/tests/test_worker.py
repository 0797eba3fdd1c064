from __future__ import annotations

import functools
import gc
import json
import shutil
import subprocess
import sys

import generate_families as families
import generate_tools as tools
import pytest
import torch
from safetensors.torch import load_file, save_file

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import ConfigError, ModelError
from tenonry.info import ModelInfo
from tenonry.interfaces.worker import WorkerContext
from tenonry_hf_hub import tensor_shapes
from tenonry_torch_base.cache_argument import cache_argument
from tenonry_worker_transformers import startup
from tenonry_worker_transformers.worker import TransformersWorker

pytestmark = pytest.mark.slow  # whole models


def worker(folder, *, max_model_len=64, options=None, **config):
    info = ModelInfo(
        name="test",
        path=str(folder),
        architecture="Test",
        max_model_len=max_model_len,
        vocab_size=families.VOCAB,
    )
    settings = EngineConfig(model=str(folder), **({"device": "cpu", "max_num_seqs": 4} | config))
    context = WorkerContext(settings, info, max_model_len=max_model_len, options=options)
    return TransformersWorker(context)


def config_only(folder, **values):
    (folder / "config.json").write_text(json.dumps(values))
    return folder


@pytest.mark.integration
def test_the_module_of_the_worker_is_light():
    code = "import tenonry_worker_transformers.worker, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_groups_say_what_a_token_and_a_request_take():
    """gemma3: K and V of 2 heads of 8 in float32, one layer of two keeps 5 tokens; mamba: only states."""
    loaded = worker(families.folder("gemma3"))
    loaded.load()
    (group,) = loaded.kv_cache_groups()
    assert group.kind == "opaque"
    assert (group.bytes_per_token, group.state_bytes) == (2 * 2 * 8 * 4, 5 * 2 * 2 * 8 * 4)
    loaded = worker(families.folder("mamba"))
    loaded.load()
    (group,) = loaded.kv_cache_groups()
    assert group.bytes_per_token == 0
    assert group.state_bytes > 0


def test_the_collector_rests_while_a_model_is_looked_at(monkeypatch):
    seen = []
    real = startup.outline

    def noted(*args, **options):
        seen.append(gc.isenabled())
        return real(*args, **options)

    monkeypatch.setattr(startup, "outline", noted)
    worker(families.folder("gemma3")).examine()
    worker(families.folder("gemma3")).load()
    assert seen == [False, False]
    assert gc.isenabled()


def test_the_loaded_model_has_the_facts_that_were_examined_and_its_groups():
    loaded = worker(families.folder("gemma3"))
    examined = loaded.examine()
    loaded.load()
    facts = loaded.call("model_facts")
    assert facts["worker"] == "transformers"
    assert facts["num_parameters"] == examined.num_parameters > 0
    assert facts["groups"][0]["bytes_per_token"] == loaded.kv_cache_groups()[0].bytes_per_token


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}, "Whisper.*not read text"),
        ({"model_type": "seamless_m4t", "architectures": ["SeamlessM4TForTextToText"]}, "`generate` of its own"),
        ({"model_type": "nope", "architectures": ["NopeForCausalLM"]}, "NopeForCausalLM.*not known"),
        ({"model_type": "vit", "architectures": ["ViTModel"]}, "ViTModel.*no causal language model"),
    ],
)  # fmt: skip
def test_what_generate_cannot_run_on_text_is_refused_by_name(tmp_path, values, reason):
    folder = config_only(tmp_path, **values)
    with pytest.raises(ModelError, match=reason):
        worker(folder, load_format="dummy").load()


def test_a_model_that_draws_at_random_is_refused_by_its_config(tmp_path):
    """Before weights: there are none in the folder."""
    config = json.loads((families.path("reformer") / "config.json").read_text())
    config_only(tmp_path, **config | {"hash_seed": None})
    with pytest.raises(ModelError, match=r"ReformerModelWithLMHead draws its hashes .*hash_seed"):
        worker(tmp_path, load_format="dummy").examine()
    config_only(tmp_path, **config | {"hash_seed": None, "attn_layers": ["local", "local"]})
    assert worker(tmp_path, load_format="dummy").examine().num_parameters


def test_states_of_modules_count_as_states_of_a_request():
    """RecurrentGemma: two layers with a recurrent state [32] and a window of 3 inputs of 32; one attends to 8."""
    loaded = worker(families.folder("recurrent_gemma"))
    loaded.load()
    assert len(loaded.model.calls.states.places) == 4
    (group,) = loaded.kv_cache_groups()
    states = 2 * (32 + 3 * 32) * 4
    assert group.state_bytes >= states
    plain = worker(families.folder("gemma3"))
    plain.load()
    assert plain.model.calls.states.places == []


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_facts_come_without_weights(load_format):
    facts = worker(families.folder("gemma3"), load_format=load_format).examine()
    assert (facts.worker, facts.model_type) == ("transformers", "gemma3_text")
    parameters = families.stored("gemma3").num_parameters()
    assert (facts.num_parameters, facts.weight_bytes) == (parameters, 4 * parameters)
    assert facts.stored_bytes == (4 * parameters if load_format == "auto" else 0)


@pytest.mark.parametrize("family", ["gemma3", "bart"])
def test_a_shard_that_the_model_does_not_need_may_be_absent(tmp_path, family):
    """For example of a wrapper's towers. The generation config is read as usual."""
    folder = families.folder(family)
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((families.path(family) / name).read_bytes())
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps(generation | {"top_k": 7}))
    (tmp_path / "a.safetensors").write_bytes(
        (families.path(family) / "model.safetensors").read_bytes()
    )
    names = tensor_shapes(tmp_path / "a.safetensors")
    weight_map = dict.fromkeys(names, "a.safetensors") | {"tower.weight": "b.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    made = worker(tmp_path)
    assert made.examine().features["files_not_needed"] == ["b.safetensors"]
    made.load()
    other = worker(folder)
    other.load()
    assert "files_not_needed" not in other.examine().features
    module = made.model.calls.module
    wanted = other.model.calls.module.state_dict()
    assert wanted.keys() == module.state_dict().keys()
    assert all(torch.equal(wanted[name], value) for name, value in module.state_dict().items())
    assert module.generation_config.top_k == 7
    weight_map[next(iter(names))] = "b.safetensors"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError, match=r"lacks 1 of the 2 weight files .*\(b\.safetensors\)"):
        worker(tmp_path).examine()


@pytest.mark.parametrize("name", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_several_ranks_are_refused_with_what_to_do(name):
    with pytest.raises(ConfigError, match=f"{name}=2.*use {name}=1"):
        worker(families.folder("gemma3"), **{name: 2}).load()


def test_dummy_weights_follow_the_seed(tmp_path):
    config_only(tmp_path, **json.loads((families.path("gptj") / "config.json").read_text()))

    def state(seed):
        loaded = worker(tmp_path, load_format="dummy", seed=seed)
        loaded.load()
        return loaded.model.calls.module.state_dict()

    first, same, other = state(5), state(5), state(6)
    assert all(torch.equal(weight, same[name]) for name, weight in first.items())
    assert any(not torch.equal(weight, other[name]) for name, weight in first.items())


def test_missing_weights_are_not_made_up(tmp_path):
    from safetensors.torch import load_file, save_file

    source = families.path("gptj")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    weights = load_file(source / "model.safetensors")
    del weights["transformer.h.1.mlp.fc_in.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 of the tensors .* such as transformer\.h\.1\.mlp"):
        worker(tmp_path).load()


def test_a_model_whose_requests_disturb_each_other_does_not_start(monkeypatch):
    """State that a module keeps for itself, instead of in its cache object."""
    from transformers import FalconForCausalLM

    forward = FalconForCausalLM.forward
    seen = []

    def mixing(self, input_ids=None, **kwargs):
        outputs = forward(self, input_ids=input_ids, **kwargs)
        outputs.logits = outputs.logits + 3.0 * len({tuple(row) for row in seen})
        seen.append(input_ids[0].tolist())
        outputs.logits[..., seen[-2][-1] if len(seen) > 1 else 0] += 50.0
        return outputs

    mixing.__signature__ = __import__("inspect").signature(forward)
    monkeypatch.setattr(FalconForCausalLM, "forward", mixing)
    folder = families.folder("falcon")
    with pytest.raises(ModelError, match="FalconForCausalLM fails the self check"):
        worker(folder).load()


def test_a_weight_with_nan_is_named(tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(families.folder("falcon"), folder)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "dense_4h_to_h" in name)
    weights[name][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=rf"computes NaN: .*{name} \(1 of \d+ values\)"):
        worker(folder).load()


def with_generation_config(folder, **values):
    """The model falcon, with a generation_config.json of these values."""
    source = families.path("falcon")
    for file in ("config.json", "model.safetensors"):
        (folder / file).write_bytes((source / file).read_bytes())
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(
    "values",
    [
        {"force_words_ids": [[5]]},
        {"assistant_early_exit": 1},
        {"is_assistant": True},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
        {"max_time": 1e-6, "stop_strings": ["a"], "cache_implementation": "static"},
    ],
)
def test_ways_to_search_in_a_generation_config_are_not_taken(tmp_path, values):
    loaded = worker(with_generation_config(tmp_path, **values))
    loaded.load()
    assert loaded.model.checked.batching.name == "MIXED"


@pytest.mark.parametrize("skip_model_check", [False, True])
def test_what_the_models_own_code_raises_is_a_refusal_by_name(monkeypatch, skip_model_check):
    from transformers import FalconForCausalLM

    def failing(self, *arguments, **options):
        raise IndexError("no such layer")

    monkeypatch.setattr(FalconForCausalLM, "_update_model_kwargs_for_generation", failing)
    with pytest.raises(
        ModelError, match=r"FalconForCausalLM cannot run .*IndexError: no such layer"
    ):
        worker(families.folder("falcon"), skip_model_check=skip_model_check).load()


def test_batching_can_be_switched_off():
    with tools.engine(
        "gemma3", worker=PluginChoice(name="transformers", options={"batching": False})
    ) as llm:
        calls = tools.decoding_calls(llm)
        assert tools.tokens(tools.served(llm, tools.prompts())) == tools.generated("gemma3")
        assert {rows for rows, _ in calls} == {1}


def test_unchecked_models_are_computed_row_by_row():
    with tools.engine("gemma3", skip_model_check=True) as llm:
        checked = tools.worker_of(llm).model.checked
        assert (checked.chunks, checked.batching.name) == (False, "NONE")
        assert tools.tokens(tools.served(llm, tools.prompts())) == tools.generated("gemma3")


@pytest.mark.parametrize("name", ["index_topk", "expert_capacity"])
def test_what_short_prompts_cannot_show_is_computed_row_by_row(tmp_path, name):
    source = families.path("gemma3")
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((source / file).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config_only(tmp_path, **(config | {name: 4}))
    loaded = worker(tmp_path)
    loaded.load()
    checked = loaded.model.checked
    assert (checked.chunks, checked.batching.name) == (False, "NONE")


@pytest.mark.parametrize(
    ("is_wrong", "chunks"),
    [
        pytest.param(lambda sizes: len(sizes) > 1 and 1 < sizes[-1] < 8, False, id="short chunk"),
        # Of the 17 tokens of the check's long prompt.
        pytest.param(lambda sizes: sizes[-1] == 1 and sum(sizes) == 17, False, id="last token"),
        pytest.param(lambda sizes: False, True, id="none"),
    ],
)
def test_chunks_that_a_models_code_computes_otherwise_are_not_used(monkeypatch, is_wrong, chunks):
    from transformers import Gemma3ForCausalLM

    forward = Gemma3ForCausalLM.forward

    @functools.wraps(forward)
    def forgetful(self, input_ids=None, *arguments, **options):
        sizes = options[cache_argument(forward)].__dict__.setdefault("sizes_of_calls", [])
        sizes.append(input_ids.shape[1])
        made = forward(self, input_ids, *arguments, **options)
        if is_wrong(sizes):
            made.logits = -made.logits
        return made

    monkeypatch.setattr(Gemma3ForCausalLM, "forward", forgetful)
    loaded = worker(families.folder("gemma3"))
    loaded.load()
    assert loaded.model.checked.chunks == chunks
