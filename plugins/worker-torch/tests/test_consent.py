"""Parts of other packages on alpha points: the worker finds them by the consent in its configuration alone."""

from __future__ import annotations

import os

import pytest
import worker_families
import worker_tools

from tenonry.engine.kv_plan import plan_kv_cache
from tenonry.errors import PluginError
from tenonry.plugin.discovery import EXPERIMENTAL
from tenonry_testkit.plugins import TmpPlugins
from tenonry_worker_torch.options import TorchOptions
from tenonry_worker_torch.worker import TorchWorker

PARTS = """
from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_torch_base.buffers import HostBuffers
from tenonry_worker_torch.passes.model_pass import ModelPass
from tenonry_worker_torch.runner.feature import RunnerFeature


class Buffers(HostBuffers):
    pass


class Kernels(CpuKernels):
    pass


class Pass(ModelPass):
    name = "acme"

    def apply(self, model, facts, changes):
        return "all"


class Feature(RunnerFeature):
    name = "acme"
"""
OPTIONS = {
    "buffers": ("tenonry.buffers", "acme"),
    "step_kernels": ("tenonry.step_kernels", "acme"),
    "model_passes": ("tenonry.model_passes", ("acme",)),
    "runner_features": ("tenonry.runner_features", ("acme",)),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A small model; a package of somebody else has a part for each alpha point."""
    monkeypatch.delenv(EXPERIMENTAL, raising=False)
    classes = ("Buffers", "Kernels", "Pass", "Feature")
    groups = [group for group, _ in OPTIONS.values()]
    with TmpPlugins(tmp_path / "site", see_installed=True) as plugins:
        plugins.distribution(
            "acme-parts",
            entry_points={
                group: {"acme": f"acme_parts:{name}"}
                for group, name in zip(groups, classes, strict=True)
            },
            modules={"acme_parts": PARTS},
        )
        worker_families.save("llama", tmp_path / "model")
        yield tmp_path / "model"


@pytest.mark.parametrize("option", OPTIONS)
def test_without_consent_the_part_is_refused(option, folder):
    context = worker_tools.context(folder, options=TorchOptions(**{option: OPTIONS[option][1]}))
    with pytest.raises(PluginError, match=r"acme-parts.* alpha point .* --allow-experimental"):
        TorchWorker(context).load()


def test_the_consent_of_the_configuration_reaches_every_part(folder):
    options = TorchOptions(**{option: value for option, (_, value) in OPTIONS.items()})
    context = worker_tools.context(folder, options=options, allow_experimental_plugins=True)
    worker = TorchWorker(context)
    worker.load()
    groups, memory = [worker.kv_cache_groups()], [worker.available_memory()]
    worker.initialize_cache(plan_kv_cache(groups, memory, context.config, context.max_model_len))
    found = worker.resolved_plugins()
    worker.shutdown()
    kinds = ("buffers", "step_kernels", "model_pass", "runner_feature")
    assert {kind: found[kind] for kind in kinds} == dict.fromkeys(kinds, "acme (acme-parts 1.0)")
    assert EXPERIMENTAL not in os.environ
