"""The first candidate that serves the model gets it; the others' reasons are kept."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from tenonry.config import EngineConfig, PluginChoice
from tenonry.engine.kv_plan import plan_kv_cache
from tenonry.errors import ConfigError, ModelError, PluginError, PluginNotFound
from tenonry.info import ModelInfo
from tenonry.interfaces.worker import WorkerContext
from tenonry.plugin.manager import PluginManager
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.worker import WorkerContract
from tenonry_worker_auto.options import AutoOptions
from tenonry_worker_auto.worker import AutoWorker

pytestmark = pytest.mark.slow  # whole models

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
XLNET = {"vocab_size": 96, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}
T5 = {
    "vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    made = {}
    torch.manual_seed(0)
    for name, values in {"llama": SMALL, "xlnet": XLNET, "t5": T5}.items():
        kind = AutoModelForSeq2SeqLM if name == "t5" else AutoModelForCausalLM
        model = kind.from_config(CONFIG_MAPPING[name](**values))
        for weight in model.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, 0.0, 2.0 * weight.shape[-1] ** -0.5)
        made[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(made[name])
    return made


def worker(folder, *, options=None, **config):
    info = ModelInfo(
        name="test", path=str(folder), architecture="Test", max_model_len=48, vocab_size=96
    )
    settings = EngineConfig(model=str(folder), **({"device": "cpu", "max_num_seqs": 4} | config))
    context = WorkerContext(settings, info, max_model_len=48, options=options or AutoOptions())
    return AutoWorker(context)


def loaded(folder, **options):
    found = worker(folder, **options)
    found.load()
    return found


def name_of(found):
    return found.resolved_plugins()["worker"].split()[0]


@pytest.mark.integration
def test_the_module_of_the_worker_is_light():
    code = "import tenonry_worker_auto.worker, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_is_the_default():
    assert EngineConfig(model="demo").worker == PluginChoice(name="auto")


def test_the_first_that_serves_the_model_is_chosen(folders):
    found = loaded(folders["llama"])
    assert name_of(found) == "torch"
    assert found.chosen.resolved_plugins().items() <= found.resolved_plugins().items()
    found.shutdown()


def test_the_chosen_worker_answers_for_the_model(folders):
    found = loaded(folders["llama"])
    facts = found.call("model_facts")
    assert facts["worker"] == "torch"
    assert facts["num_parameters"] > 0
    phases = found.call("load_phases")
    assert list(phases) == ["look", "weights", "check", "packing"]
    assert all(wall >= 0 for wall, _ in phases.values())
    assert found.call("chosen_kernels").startswith("Step kernels")
    found.shutdown()


@pytest.mark.parametrize("family", ["xlnet", "t5"])
def test_what_torch_refuses_is_served_by_the_next_and_the_log_says_why(folders, caplog, family):
    with caplog.at_level(logging.INFO, "tenonry.worker"):
        found = loaded(folders[family])
    assert name_of(found) == "transformers"
    assert list(found.call("load_phases")) == ["look", "weights", "check"]
    (line,) = [
        record.message for record in caplog.records if record.message.startswith("Selected worker")
    ]
    assert line.startswith("Selected worker 'transformers': ")
    assert "worker 'torch'" in line
    groups = list(found.kv_cache_groups())
    found.initialize_cache(
        plan_kv_cache([groups], [found.available_memory()], found.context.config, 48)
    )
    found.warm_up()
    found.check_health()
    found.shutdown()


def test_examine_names_the_worker_and_the_refusals(folders):
    facts = worker(folders["llama"]).examine()
    assert (facts.worker, facts.refused) == ("torch", {})
    facts = worker(folders["t5"]).examine()
    assert facts.worker == "transformers"
    assert set(facts.refused) == {"torch"}


def test_a_worker_without_dummy_steps_has_none_to_do(folders):
    """Engines in lockstep request one whenever another engine has requests."""
    found = loaded(folders["t5"])
    assert found.call("execute_dummy_batch") is None
    found.execute_dummy_batch()
    found.shutdown()


def test_what_was_examined_is_loaded(folders):
    found = worker(folders["llama"])
    assert found.examine().worker == "torch"
    candidate = found._built["torch"]
    found.load()
    assert found.chosen is candidate
    found.shutdown()


REFUSING = """
import weakref
from tenonry.errors import ModelError
from tenonry_worker_torch.worker import TorchWorker

class Weights:
    pass

class Refusing(TorchWorker):
    held = []

    def load(self):
        weights = Weights()
        weights.itself = weights
        self.held.append(weakref.ref(weights))
        raise ModelError("its self check failed")

class Next(TorchWorker):
    def load(self):
        assert Refusing.held[0]() is None, "weights of the refused worker are still in memory"
"""


def test_what_a_refused_candidate_loaded_is_gone_before_the_next_loads(
    folders, tmp_path, monkeypatch
):
    (tmp_path / "refusing_workers.py").write_text(REFUSING)
    monkeypatch.syspath_prepend(tmp_path)
    names = ("refusing_workers:Refusing", "refusing_workers:Next")
    found = loaded(folders["llama"], options=AutoOptions(candidates=names))
    assert name_of(found) == names[1]
    found.shutdown()


def test_one_reason_of_all_is_said_once(tmp_path):
    found = worker(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="nowhere does not exist") as error:
        found.load()
    assert str(error.value).count("does not exist") == 1
    found.shutdown()


@pytest.mark.parametrize("settings", [{}, {"batch_invariant": True, "dtype": "float32"}])
def test_damaged_weights_are_not_offered_to_the_next(folders, tmp_path, settings):
    """The next candidate could not serve them either, and would name a setting instead."""
    folder = tmp_path / "damaged"
    shutil.copytree(folders["llama"], folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError) as caught:
        loaded(folder, **settings)
    assert str(caught.value).startswith("LlamaForCausalLM computes NaN: its weights")
    assert "model.norm.weight (1 of 32 values)" in str(caught.value)
    assert "leave" not in str(caught.value)


def test_all_reasons_are_given_when_nothing_serves_the_model(folders, monkeypatch):
    from tenonry_worker_transformers import startup

    def refuse(*_arguments, **_options):
        raise ModelError("T5 cannot run on worker 'transformers': for this test")

    monkeypatch.setattr(startup, "outline", refuse)
    with pytest.raises(ModelError, match=r"no worker serves.*worker 'torch'.*for this test"):
        loaded(folders["t5"])


class TestOptions:
    def test_a_key_of_no_candidate_is_refused_before_the_start(self):
        with pytest.raises(PluginError, match=r"unknown fuze; known .*batching.*fuse"):
            AutoWorker.check(EngineConfig(model="demo"), AutoOptions(fuze=True))
        AutoWorker.check(EngineConfig(model="demo"), AutoOptions(fuse=False))

    def test_a_bad_value_is_refused_before_the_start(self):
        with pytest.raises(PluginError, match="num_threads"):
            AutoWorker.check(EngineConfig(model="demo"), AutoOptions(num_threads=0))

    def test_the_plan_checks_them(self):
        choice = PluginChoice(name="auto", options={"fuze": 1})
        config = EngineConfig(model="demo", worker=choice, io_processor=None)
        with pytest.raises(PluginError, match="unknown fuze"):
            PluginManager().plan(config)

    def test_they_reach_the_chosen_worker(self, folders):
        found = loaded(folders["llama"], options=AutoOptions(fuse=False))
        assert found.chosen.options.fuse is False
        found.shutdown()

    def test_a_candidate_that_does_not_know_a_key_gives_way(self, folders):
        found = loaded(folders["llama"], options=AutoOptions(batching=False))
        assert name_of(found) == "transformers"
        found.shutdown()

    def test_candidates_can_be_named(self, folders):
        found = loaded(folders["llama"], options=AutoOptions(candidates="transformers"))
        assert name_of(found) == "transformers"
        found.shutdown()

    def test_a_candidate_that_is_not_installed_is_left_out(self, folders):
        found = loaded(folders["llama"], options=AutoOptions(candidates=("nope", "torch")))
        assert name_of(found) == "torch"
        found.shutdown()
        with pytest.raises(PluginNotFound, match="nope"):
            loaded(folders["llama"], options=AutoOptions(candidates=("nope",)))


def test_a_connector_needs_a_worker_with_blocks(folders):
    with pytest.raises(ConfigError, match=r"worker 'torch'.*kv_connector=host: worker 'trans"):
        loaded(folders["t5"], kv_connector="host")


def test_batch_invariance_needs_a_worker_that_promises_it(folders):
    """WK-14."""
    found = loaded(folders["llama"], batch_invariant=True, dtype="float32")
    assert name_of(found) == "torch"
    assert "whatever runs beside it" in found.chosen_kernels()
    with pytest.raises(
        ConfigError, match=r"worker 'torch'.*would try, but batch_invariant=True: .*leave"
    ):
        loaded(folders["t5"], batch_invariant=True, dtype="float32")


def test_kv_in_8_bits_needs_a_worker_that_keeps_them_so(folders):
    with pytest.raises(ConfigError, match=r"kv_cache_dtype=int8: worker '.*'.*leave it out"):
        loaded(folders["t5"], kv_cache_dtype="int8")


def test_ranks_of_a_model_that_only_one_rank_serves_are_refused(folders):
    with pytest.raises(ConfigError, match=r"use tensor_parallel_size=1"):
        loaded(
            folders["llama"],
            options=AutoOptions(candidates=("transformers",)),
            tensor_parallel_size=2,
        )


def test_an_unknown_attention_backend_is_no_reason_to_choose_another_worker(folders):
    found = worker(folders["llama"], attention_backend="nope")
    with pytest.raises(PluginNotFound, match="nope"):
        found.load()
    found.shutdown()


@pytest.fixture(autouse=True, scope="module")
def _paths(folders):
    TestContract.path = str(folders["llama"])


class TestContract(WorkerContract):
    worker = AutoWorker
    config = {"device": "cpu"}  # noqa: RUF012 - as the suite has it
    loads_once = True
    spec = HarnessSpec(num_blocks=40, max_num_batched_tokens=64, max_model_len=48, vocab_size=96)
    path = ""

    def model(self):
        return ModelInfo(
            name="llama",
            path=self.path,
            architecture="LlamaForCausalLM",
            max_model_len=48,
            vocab_size=96,
        )
