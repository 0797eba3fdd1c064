"""Settings that exclude each other are rejected by name, before weights are read, as features and passes declare."""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import ConfigError, PluginError
from tenonry_torch_base.conflicts import CONDITIONS, Conflicts, Setup, refuse_conflicts
from tenonry_worker_torch.compatibility import OWN
from tenonry_worker_torch.options import TorchOptions
from tenonry_worker_torch.startup import looked

# How each condition comes about: fields of the configuration, of the options, or of the setup itself.
CONFIG = {
    "attention_backend": "sdpa", "batch_invariant": True, "drafter": PluginChoice(name="ngram"),
    "enable_expert_parallel": True, "enforce_eager": True, "kv_cache_dtype": "int8",
    "kv_connector": PluginChoice(name="host"), "load_format": "sharded", "max_images": 2, "max_loras": 2,
    "max_round_tokens": 1, "pipeline_parallel_size": 2, "tensor_parallel_size": 2,
}  # fmt: skip
OPTIONS = {"fuse": False, "model_passes": ("mine",), "step_kernels": "none"}
SETUP = {
    "device": {"device": torch.device("cuda")},
    "dtype": {"dtype": torch.float16},
    "quantization": {"quantisation": "int8"},
    "quantised checkpoint": {"stored_quantisation": "gptq"},
}
PAIRS = [(part, name) for part in OWN for name in part.given]


def setup_of(*names):
    """A setup in which these conditions hold."""
    config = {name: CONFIG[name] for name in names if name in CONFIG}
    config = EngineConfig.model_construct(**(EngineConfig(model="m").model_dump() | config))
    options = TorchOptions(**{name: OPTIONS[name] for name in names if name in OPTIONS})
    values = {"device": torch.device("cpu"), "dtype": torch.float32}
    for name in names:
        values |= SETUP.get(name, {})
    return Setup(config, options, **values)


@pytest.mark.parametrize(("part", "name"), PAIRS, ids=lambda each: getattr(each, "setting", each))
def test_each_declared_conflict_is_rejected_with_both_names(part, name):
    refuse_conflicts([part], setup_of(part.setting))
    refuse_conflicts([part], setup_of(name))
    with pytest.raises(ConfigError) as caught:
        refuse_conflicts(OWN, setup_of(part.setting, name))
    text = str(caught.value)
    assert " does not go with " in text
    for each in (part.setting, name):
        typed = CONDITIONS[each].found(setup_of(each))
        assert typed in text


def test_every_condition_is_declared_by_someone():
    named = {name for part in OWN for name in (part.setting, *part.given)}
    assert named == set(CONDITIONS)


FILE = """
from tenonry_worker_torch.passes.model_pass import ModelPass
from tenonry_worker_torch.runner.feature import RunnerFeature


class NoLoras(ModelPass):
    name = "no-loras"
    conflicts = {"max_loras": "it replaces linear layers; leave one of them out"}

    def apply(self, model, facts, changes):
        return "all"


class NoDrafts(RunnerFeature):
    name = "no-drafts"
    conflicts = {"drafter": "it counts steps; leave one of them out"}
"""


@pytest.mark.parametrize(
    ("option", "name", "setting", "text"),
    [
        ("model_passes", "NoLoras", {"max_loras": 2}, "max_loras=2: it replaces linear layers"),
        ("runner_features", "NoDrafts", {"drafter": "ngram"}, "drafter=ngram: it counts steps"),
    ],
)
def test_parts_of_packages_declare_conflicts_too(option, name, setting, text, tmp_path):
    worker_families.save("llama", tmp_path)
    file = tmp_path / "parts.py"
    file.write_text(FILE)
    options = TorchOptions(**{option: (f"{file}:{name}",)})
    looked(worker_tools.context(tmp_path, options=options))
    with pytest.raises(ConfigError, match=rf"parts.py:{name} does not go with {text}"):
        looked(worker_tools.context(tmp_path, options=options, **setting))


def test_options_of_parts_are_checked_before_weights_are_read(tmp_path):
    worker_families.save("llama", tmp_path)
    file = tmp_path / "parts.py"
    file.write_text(FILE)
    choice = {"name": f"{file}:NoLoras", "options": {"tokens": 2}}
    options = TorchOptions(model_passes=[choice])
    with pytest.raises(PluginError, match=r"NoLoras.* are not valid: .*tokens"):
        looked(worker_tools.context(tmp_path, options=options))


def test_a_setting_that_no_condition_describes_is_a_mistake_of_the_declaration():
    part = Conflicts("max_loras", {"max_lora": "misspelt"})
    with pytest.raises(KeyError, match="max_lora"):
        refuse_conflicts([part], setup_of("max_loras"))
