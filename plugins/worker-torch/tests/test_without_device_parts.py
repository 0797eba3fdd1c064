"""Without the distribution for CPUs, the worker serves there with torch's own operations, and says what to install."""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools
from worker_driver import Driver, Request

from tenonry.engine.kv_plan import plan_kv_cache
from tenonry.errors import ConfigError
from tenonry.plugin import discovery
from tenonry.step import DoneFuture
from tenonry_worker_torch.options import TorchOptions
from tenonry_worker_torch.worker import TorchWorker

COMMAND = "pip install tenonry-worker-torch-cpu"


@pytest.fixture(autouse=True)
def without_cpu_part(monkeypatch):
    installed = discovery.installed

    def others(point):
        return tuple(
            each for each in installed(point) if each.distribution != "tenonry-worker-torch-cpu"
        )

    monkeypatch.setattr(discovery, "installed", others)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    worker_families.save("llama", path)
    return path


def served(context):
    """Worker over the folder, and its greedy answers to all prompts."""
    worker = TorchWorker(context)
    worker.examine()
    worker.load()
    groups = list(worker.kv_cache_groups())
    plan = plan_kv_cache(
        [groups], [worker.available_memory()], context.config, context.max_model_len
    )
    worker.initialize_cache(plan)
    worker.warm_up()
    driver = Driver(
        lambda output: DoneFuture(worker.execute_model(output)),
        max_num_seqs=6,
        num_blocks=plan.num_blocks,
        block_size=plan.block_size,
    )
    requests = [
        Request(number + 1, prompt, max_tokens=worker_tools.OUTPUT_LENGTH)
        for number, prompt in enumerate(worker_tools.prompts())
    ]
    return worker, driver.run(requests)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_computes_what_the_models_own_code_does(folder, dtype, caplog):
    caplog.set_level("INFO", "tenonry.worker")
    worker, requests = served(worker_tools.context(folder, dtype=dtype))
    model = worker.model
    assert model.backend.name == "sdpa"
    assert model.passes.used == ["fusion"]
    assert model.chosen_kernels == "Step kernels: none, torch alone computes"
    assert not model.is_invariant
    assert [line for line in caplog.messages if line.endswith(COMMAND)]
    reference = worker_families.build("llama", dtype=getattr(torch, dtype))
    if dtype == "float32":
        tokens = [request.output for request in requests]
        assert tokens == worker_tools.generated("llama")
    assert all(worker_tools.lost(reference, request) < worker_tools.LOST for request in requests)


@pytest.mark.parametrize(
    ("context", "setting"),
    [
        ({"batch_invariant": True, "dtype": "float32"}, "batch_invariant"),
        ({"options": TorchOptions(step_kernels="cpu")}, "step_kernels=cpu"),
    ],
)
def test_a_setting_that_needs_it_is_refused_with_what_to_install(folder, context, setting):
    worker = TorchWorker(worker_tools.context(folder, **context))
    with pytest.raises(ConfigError, match=f"^{setting}: .*{COMMAND}"):
        worker.load()
