"""Settings incompatible with `batch_invariant` are rejected by name, before a weight is read."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
import worker_families
import worker_tools

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, ModelError
from tenonry_kernels_cpu.invariant import Invariant
from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_torch_base.conflicts import Setup, refuse_conflicts
from tenonry_worker_torch.invariant_settings import CONFLICTS, require_kernels
from tenonry_worker_torch.options import TorchOptions
from tenonry_worker_torch.startup import backend_class, looked
from tenonry_worker_torch.worker import TorchWorker
from tenonry_worker_torch_cpu.attention.invariant import InvariantBackend

pytestmark = pytest.mark.slow  # whole models

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    worker_families.save("llama", path)
    return path


def worker(folder, options=None, **config):
    settings = {"batch_invariant": True, "dtype": "float32"} | config
    return TorchWorker(worker_tools.context(folder, options=options, **settings))


needs_quantisations = pytest.mark.skipif(
    find_spec("tenonry_quantisations") is None, reason="the distribution is not installed"
)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"dtype": "float16"},
            "dtype=float16: batch-invariant kernels compute in float32 and bfloat16; use --dtype b",
        ),
        pytest.param(
            {"quantization": "int8"},
            "quantization=int8: batch-invariant kernels compute with floats",
            marks=needs_quantisations,
        ),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2: sums"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2: sums"),
        ({"kv_connector": "host"}, "kv_connector=host: K/V of another engine"),
        (
            {"kv_cache_dtype": "int8"},
            "kv_cache_dtype=int8: batch-invariant kernels read K and V as floats; use auto",
        ),
        (
            {"attention_backend": "sdpa"},
            "attention_backend=sdpa: attention has kernels of its own there",
        ),
        ({"enforce_eager": True}, "leave out --enforce-eager"),
        ({"options": TorchOptions(fuse=False)}, "fuse=false: the model would"),
        (
            {"options": TorchOptions(step_kernels="none")},
            "step_kernels=none: only step kernels are batch invariant",
        ),
    ],
)
def test_settings_are_refused_by_name(folder, config, reason):
    with pytest.raises(ConfigError, match=f"^batch_invariant does not go with .*{reason}"):
        worker(folder, **config).examine()


def test_images_and_devices_are_refused_by_name(folder):
    config = worker_tools.context(folder, max_images=1, batch_invariant=True).config
    with pytest.raises(ConfigError, match="max_images=1: images are encoded together"):
        refuse_conflicts([CONFLICTS], Setup(config, TorchOptions(), CPU, torch.float32))
    with pytest.raises(ConfigError, match="device=cuda:1: batch-invariant kernels run on the CPU"):
        refuse_conflicts([CONFLICTS], Setup(config, TorchOptions(), torch.device("cuda:1")))


def test_without_kernels_the_error_says_what_to_install():
    with pytest.raises(ConfigError, match="pip install tenonry-kernels-cpu on a machine with a C"):
        require_kernels(None)


def looked_at(folder, **settings):
    """Return True if the model would be served with batch invariance."""
    found, _ = looked(worker_tools.context(folder, **settings))
    return found.is_invariant


@pytest.mark.parametrize(
    "setting",
    [
        {"dtype": "bfloat16"},
        {"attention_backend": "sdpa"},
        {"enforce_eager": True},
        {"options": TorchOptions(step_kernels="none")},
        {"batch_invariant": False},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_by_default_it_is_left_out_where_something_is_in_the_way(folder, setting):
    settings = {"dtype": "float32"} | setting
    assert not looked_at(folder, **settings)
    assert TorchWorker(worker_tools.context(folder, **settings)).examine().architecture


def test_where_the_default_ends_one_line_says_so(folder, caplog):
    caplog.set_level("INFO", "tenonry.worker")
    assert not looked_at(folder, dtype="float32", kv_connector="host")
    lines = [line for line in caplog.messages if "Batch invariance" in line]
    reason = "kv_connector=host: K/V of another engine may have other bits; use none"
    assert lines == [f"Batch invariance, the default in float32, disabled: {reason}"]
    caplog.clear()
    assert looked_at(folder, dtype="float32")
    assert not looked_at(folder, dtype="bfloat16", kv_connector="host")
    assert not looked_at(folder, dtype="float32", batch_invariant=False)
    assert "batch invariance" not in caplog.text


def test_by_default_it_is_kept_in_float32_for_families_that_have_kernels(folder, tmp_path):
    assert looked_at(folder, dtype="float32")
    assert looked_at(folder, dtype="float32", max_loras=2)
    worker_families.save("gpt2", tmp_path)
    assert not looked_at(tmp_path, dtype="float32")


def loaded(folder, **settings):
    worker = TorchWorker(worker_tools.context(folder, dtype="float32", **settings))
    worker.load()
    return worker.model


@pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built")
def test_model_that_proves_to_be_another_is_loaded_again_without_it(folder, monkeypatch, caplog):
    """Unless it was configured: then the model is rejected."""
    assert loaded(folder).is_invariant
    assert not loaded(folder, batch_invariant=False).is_invariant
    monkeypatch.setattr(Invariant, "layer", lambda self, parts: None)
    caplog.set_level("INFO", "tenonry.worker")
    model = loaded(folder)
    assert not model.is_invariant
    assert not isinstance(model.backend, InvariantBackend)
    assert "Batch invariance disabled: batch_invariant: LlamaForCausalLM" in caplog.text
    with pytest.raises(ModelError, match="layers of shapes for which the step kernels have none"):
        loaded(folder, batch_invariant=True)


def test_attention_is_by_its_own_backend():
    config = EngineConfig(model="m", dtype="float32")
    assert backend_class(config, CPU, {}, is_invariant=True) is InvariantBackend
    assert backend_class(config, CPU, {}, is_invariant=False) is not InvariantBackend
