"""What `batch_invariant` does not go together with is refused by name, before a weight is read."""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools

from tenonry.errors import ConfigError
from tenonry_worker_torch.attention.invariant import InvariantBackend
from tenonry_worker_torch.invariant_settings import check_invariant, require_kernels
from tenonry_worker_torch.loading.load import look
from tenonry_worker_torch.options import TorchOptions
from tenonry_worker_torch.startup import backend_class
from tenonry_worker_torch.worker import TorchWorker

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    worker_families.save("llama", path)
    return path


def worker(folder, options=None, **config):
    settings = {"batch_invariant": True, "dtype": "float32"} | config
    return TorchWorker(worker_tools.context(folder, options=options, **settings))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"dtype": "bfloat16"}, "dtype=bfloat16: they are in float32; use --dtype float32"),
        ({"quantization": "int8"}, "quantization=int8: they are for floats"),
        ({"max_loras": 2}, "max_loras=2: adapters add"),
        ({"tensor_parallel_size": 2}, "2 ranks: their sums"),
        ({"pipeline_parallel_size": 2}, "2 ranks: their sums"),
        ({"kv_connector": "host"}, "kv_connector=host: K/V of another engine"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype=int8: they read K and V as floats; use auto"),
        ({"attention_backend": "sdpa"}, "attention_backend=sdpa: it attends by kernels of its own"),
        ({"enforce_eager": True}, "leave out --enforce-eager and fuse=false"),
        ({"options": TorchOptions(fuse=False)}, "leave out --enforce-eager and fuse=false"),
        ({"options": TorchOptions(step_kernels="none")}, "step_kernels=none: only kernels keep it"),
    ],
)
def test_settings_are_refused_by_name(folder, config, reason):
    with pytest.raises(ConfigError, match=f"^batch_invariant: .*; {reason}.* leave --batch-inv"):
        worker(folder, **config).examine()


def test_images_and_devices_are_refused_by_name(folder):
    found = look(str(folder), load_format="auto")
    config = worker_tools.context(folder, max_images=1, dtype="float32").config
    with pytest.raises(ConfigError, match="max_images=1: images are encoded together"):
        check_invariant(found, config, CPU, TorchOptions())
    with pytest.raises(ConfigError, match="device=cuda:1: the kernels for that are for the CPU"):
        check_invariant(found, config, torch.device("cuda:1"), TorchOptions())


def test_without_kernels_the_error_says_what_to_install():
    with pytest.raises(ConfigError, match="pip install tenonry-kernels-cpu on a machine with a C"):
        require_kernels(None)


def test_without_it_nothing_is_refused_and_attention_is_as_before(folder):
    context = worker_tools.context(folder, dtype="bfloat16", attention_backend="sdpa")
    assert TorchWorker(context).examine().architecture == "LlamaForCausalLM"
    usual = worker_tools.context(folder, dtype="float32").config
    assert backend_class(usual, CPU, {}) is not InvariantBackend
    asked = worker_tools.context(folder, dtype="float32", batch_invariant=True).config
    assert backend_class(asked, CPU, {}) is InvariantBackend
