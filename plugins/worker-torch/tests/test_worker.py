from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest
import torch
import worker_families
import worker_tools
from worker_driver import Driver, Request

from tenonry.engine.kv_plan import plan_kv_cache
from tenonry.errors import ConfigError, ModelError, PluginError, PluginNotFound
from tenonry.step import DoneFuture
from tenonry_torch_base.points import ATTENTION_BACKENDS, BUFFERS, resolve_class
from tenonry_worker_torch import loader, startup
from tenonry_worker_torch.options import TorchOptions
from tenonry_worker_torch.worker import TorchWorker


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    worker_families.save("llama", path)
    return path


def started(context):
    worker = TorchWorker(context)
    worker.load()
    groups = list(worker.kv_cache_groups())
    plan = plan_kv_cache(
        [groups], [worker.available_memory()], context.config, context.max_model_len
    )
    worker.initialize_cache(plan)
    worker.warm_up()
    return worker, plan


@pytest.mark.integration
def test_the_module_of_the_worker_is_light():
    code = "import tenonry_worker_torch.worker, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_collector_rests_while_the_model_is_looked_at_and_not_while_weights_are_read(
    folder, monkeypatch
):
    seen = {}

    def noted(module, name):
        real = getattr(module, name)

        def run(*args, **options):
            seen[name] = gc.isenabled()
            return real(*args, **options)

        return run

    for module, name in ((startup, "look"), (loader, "load_model")):
        monkeypatch.setattr(module, name, noted(module, name))
    TorchWorker(worker_tools.context(folder)).load()
    assert seen == {"look": False, "load_model": True}


def test_a_worker_serves_from_start_to_end(folder):
    """The whole order of calls: load, size, allocate, warm up, steps, shutdown."""
    worker, plan = started(worker_tools.context(folder))
    group = worker.kv_cache_groups()[0]
    assert group.bytes_per_token == 3 * 2 * 2 * 16 * 4
    assert group.layers == tuple(f"model.layers.{i}.self_attn" for i in range(3))
    assert plan.num_blocks == 8 * 4
    driver = Driver(
        lambda output: DoneFuture(worker.execute_model(output)), max_num_seqs=6, num_blocks=plan.num_blocks,
        block_size=plan.block_size,
    )  # fmt: skip
    requests = [
        Request(i + 1, prompt, max_tokens=12) for i, prompt in enumerate(worker_tools.prompts())
    ]
    assert [one.output for one in driver.run(requests)] == worker_tools.generated("llama")
    assert worker.steps_in_flight == 1
    worker.check_health()
    worker.shutdown()


def test_what_the_extension_points_resolved_to_is_reported(folder):
    worker, _ = started(worker_tools.context(folder, attention_backend="sdpa"))
    resolved = worker.resolved_plugins()
    assert resolved["attention_backend"].startswith("sdpa (tenonry-torch-base ")
    assert resolved["buffers"].startswith("host (tenonry-torch-base ")


def test_columns_are_as_wide_as_the_cache_allows_and_not_as_the_model_could_be(folder):
    context = worker_tools.context(
        folder, max_model_len=2**31 - 1, num_gpu_blocks_override=9, block_size=4
    )
    worker, plan = started(context)
    assert plan.max_model_len == 36
    assert worker.runner.state.token_ids.shape == (8, 37)


@pytest.mark.slow
def test_a_worker_that_was_shut_down_gives_its_memory_back(folder):
    """Also the weights and the cache that became garbage in cycles after the process froze its objects."""

    def parameters():
        modules = [each for each in gc.get_objects() if isinstance(each, torch.nn.Module)]
        return {id(each): weakref.ref(each) for module in modules for each in module.parameters()}

    others = parameters()
    worker, _ = started(worker_tools.context(folder))
    weights = [weight for key, weight in parameters().items() if key not in others]
    caches = [weakref.ref(cache.key) for cache in worker.runner.memory.kv_caches]
    assert weights
    assert caches
    gc.freeze()
    worker.shutdown()
    assert not any(each() is not None for each in [*weights, *caches])


def test_warm_up_leaves_no_row_behind(folder):
    worker, _ = started(worker_tools.context(folder))
    assert not worker.runner.state.handle.any()
    tiny, _ = started(worker_tools.context(folder, max_model_len=1))
    assert not tiny.runner.state.handle.any()


def test_calls_out_of_order_say_what_is_missing(folder):
    worker = TorchWorker(worker_tools.context(folder))
    with pytest.raises(RuntimeError, match=r"load\(\) comes first"):
        worker.kv_cache_groups()
    with pytest.raises(RuntimeError, match=r"initialize_cache\(\) comes first"):
        worker.warm_up()
    worker.shutdown()


def test_several_ranks_need_a_rendezvous(folder):
    with pytest.raises(
        ConfigError, match=r"rendezvous '' of several ranks must be file:///PATH or tcp://HOST:PORT"
    ):
        TorchWorker(worker_tools.context(folder, tensor_parallel_size=2)).load()


def test_an_unknown_backend_lists_what_is_installed(folder):
    worker = TorchWorker(worker_tools.context(folder, attention_backend="spda"))
    with pytest.raises(PluginNotFound, match="sdpa"):
        worker.load()


def test_missing_cuda_buffers_come_with_the_pip_command(monkeypatch):
    monkeypatch.setattr("tenonry.plugin.discovery.installed", lambda group: [])
    with pytest.raises(PluginNotFound, match="pip install tenonry-worker-torch-cuda"):
        resolve_class(BUFFERS, "cuda", {})


def test_buffers_of_a_package_that_does_not_depend_on_this_one_are_taken(tmp_path, monkeypatch):
    """They have the shape of StepBuffers and do not inherit from it."""
    source = (
        "class Shaped:\n    name, interface_version = 'shaped', 1\n    def begin_step(self): ...\n"
    )
    (tmp_path / "shaped.py").write_text(
        source + "    def put(self, label, array): ...\nclass Half:\n    put = None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve_class(BUFFERS, "shaped:Shaped", {}).name == "shaped"
    with pytest.raises(PluginError, match=r"is not a subclass of .*StepBuffers"):
        resolve_class(BUFFERS, "shaped:Half", {})


def test_a_backend_of_the_wrong_type_is_refused(folder):
    with pytest.raises(PluginError, match=r"is not a subclass of .*AttentionBackend"):
        resolve_class(ATTENTION_BACKENDS, "tenonry_torch_base.buffers:HostBuffers", {})


def test_a_backend_that_cannot_run_the_model_says_why(folder, monkeypatch):
    monkeypatch.setattr(
        "tenonry_worker_torch_cpu.attention.cpu.CpuBackend.refusal",
        classmethod(lambda *_: "heads are too small"),
    )
    with pytest.raises(ConfigError, match="'cpu' cannot run LlamaForCausalLM: heads are too small"):
        TorchWorker(worker_tools.context(folder, attention_backend="cpu")).load()


def test_eager_and_unfused_run_the_models_own_code(folder):
    for context in (
        worker_tools.context(folder, enforce_eager=True),
        worker_tools.context(folder, options=TorchOptions(fuse=False)),
    ):
        worker = TorchWorker(context)
        worker.load()
        assert type(worker.model.forward).__name__ == "ModuleForward"


def test_a_missing_model_is_a_model_error(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        TorchWorker(worker_tools.context(tmp_path / "none")).load()


def test_threads_are_set_when_asked(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    TorchWorker(worker_tools.context(folder, options=TorchOptions(num_threads=3))).load()
    TorchWorker(worker_tools.context(folder)).load()
    assert asked == [3]


@pytest.mark.gpu
@pytest.mark.parametrize("way", [{}, {"budget": 7}, {"depth": 2}])
def test_tokens_on_cuda_equal_generate(folder, way):
    context = worker_tools.context(
        folder, device="cuda", dtype="float32", options=TorchOptions(buffers="host")
    )
    worker, plan = started(context)
    assert worker.steps_in_flight == 2
    driver = Driver(
        worker.execute_model,
        max_num_seqs=6,
        num_blocks=min(plan.num_blocks, 512),
        block_size=plan.block_size,
        **way,
    )
    requests = [
        Request(i + 1, prompt, max_tokens=12) for i, prompt in enumerate(worker_tools.prompts())
    ]
    assert [one.output for one in driver.run(requests)] == worker_tools.generated("llama")
    worker.shutdown()
