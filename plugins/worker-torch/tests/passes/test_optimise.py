"""Passes are applied in order; one that raises or changes results is undone, named, and left out."""

from __future__ import annotations

import logging

import msgspec
import pytest
import state_families  # noqa: F401 - adds its families
import torch
import worker_families
import worker_tools

from tenonry.errors import ModelError
from tenonry.info import PluginRecord
from tenonry.interfaces.plugin import PluginOptions
from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_torch_base.buffers import HostBuffers
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.forward import ModuleForward
from tenonry_worker_torch.fuse.block import FusedAttention
from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.pass_report import Outcome
from tenonry_worker_torch.passes.fusion import Fusion
from tenonry_worker_torch.passes.model_pass import ModelPass, NotUsed
from tenonry_worker_torch.step_kernels import FoundKernels
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend
from tenonry_worker_torch_cpu.passes.kernels import ChosenKernels

pytestmark = pytest.mark.slow  # whole models

RECORD = PluginRecord(
    kind="model_pass", name="odd", target="tests:Odd", distribution="odd-passes", version="1.0"
)


class Louder(ModelPass):
    """Changes results in the last layer."""

    name = "louder"

    def apply(self, model, facts, changes):
        norm = model.forward.layers[-1].before_mlp
        changes.set(model.forward.layers[-1], "before_mlp", lambda x: norm(x) * 2)
        return "1 layer"


class Same(ModelPass):
    """Replaces a norm by an equal function."""

    name = "same"

    def apply(self, model, facts, changes):
        norm = model.forward.layers[0].before_mlp
        changes.set(model.forward.layers[0], "before_mlp", lambda x: norm(x) + 0)
        return "1 layer"


class Raises(Louder):
    """Fails after a change."""

    name = "raises"

    def apply(self, model, facts, changes):
        super().apply(model, facts, changes)
        raise ValueError("no such shape")


class RaisesWhyNot(Louder):
    name = "raises-why-not"

    def why_not(self, model, facts):
        raise RuntimeError("what is this")


class RaisesInSteps(Louder):
    """Its layer fails when it runs."""

    name = "raises-in-steps"

    def apply(self, model, facts, changes):
        def fail(x):
            raise RuntimeError("no such kernel")

        changes.set(model.forward.layers[0], "before_mlp", fail)
        return "1 layer"


class Declines(Louder):
    name = "declines"

    def apply(self, model, facts, changes):
        super().apply(model, facts, changes)
        raise NotUsed("another activation")


class CannotUndo(Louder):
    name = "cannot-undo"

    def apply(self, model, facts, changes):
        def fail():
            raise OSError("gone")

        changes.on_undo(fail)
        return super().apply(model, facts, changes)


def loaded(*passes, family="llama", **options):
    return build(
        worker_families.build(family),
        BuildPlan(
            CpuBackend,
            HostBuffers(torch.device("cpu"), 1),
            **({"max_model_len": 64, "fuse": True, "skip_check": False} | options),
            passes=[(each, RECORD) for each in passes],
        ),
    )


def tokens(model):
    return [request.output for request in worker_tools.serve(model)]


def test_a_pass_of_another_package_is_used_and_reported(caplog):
    caplog.set_level(logging.DEBUG, "tenonry.worker")
    model = loaded(Same)
    assert model.passes.used == ["fusion", "same of odd-passes"]
    assert tokens(model) == worker_tools.generated("llama")
    (line,) = [
        each.getMessage()
        for each in caplog.records
        if each.levelname == "INFO" and "Model passes" in each.getMessage()
    ]
    assert line.startswith("Model passes of LlamaForCausalLM: fusion, same of odd-passes; ")
    (table,) = [
        each.getMessage()
        for each in caplog.records
        if each.levelname == "DEBUG" and "Model passes" in each.getMessage()
    ]
    rows = [row.split()[:2] for row in table.splitlines()[1:]]
    assert [row[0] for row in rows] == [
        "mixers", "fusion", "adapter-kernels", "invariance", "experts", "same", "adapters", "matrix-kernels",
        "quantisation", "packing", "kernels", "token-search",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("odd", "outcome", "text"),
    [
        (Louder, Outcome.DIFFERS, "differ"),
        (Raises, Outcome.FAILED, "ValueError: no such shape"),
        (RaisesWhyNot, Outcome.FAILED, "RuntimeError: what is this"),
        (RaisesInSteps, Outcome.FAILED, "RuntimeError: no such kernel"),
        (Declines, Outcome.NOT_USED, "another activation"),
    ],
)
def test_a_pass_that_fails_is_undone_and_the_others_are_used(odd, outcome, text, caplog):
    model = loaded(odd, Same)
    result = model.passes[f"{odd.name} of odd-passes"]
    assert result.outcome is outcome
    assert text in result.text
    assert model.passes.used == ["fusion", "same of odd-passes"]
    assert tokens(model) == worker_tools.generated("llama")
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    named = [each for each in warnings if f"'{odd.name} of odd-passes'" in each]
    assert bool(named) == (outcome is not Outcome.NOT_USED)


class Configured(Same):
    name = "configured"

    class Options(PluginOptions):
        layers: int = 1

    def apply(self, model, facts, changes):
        super().apply(model, facts, changes)
        return f"{self.options.layers} layers"


def test_a_pass_has_the_options_of_its_user():
    record = msgspec.structs.replace(RECORD, options={"layers": 2})
    model = build(
        worker_families.build("llama"), BuildPlan(CpuBackend, HostBuffers(torch.device("cpu"), 1),
        max_model_len=64, fuse=True, skip_check=False, passes=[(Configured, record)],
    ))  # fmt: skip
    assert model.passes["configured of odd-passes"].text == "2 layers"


def test_results_are_compared_where_the_check_of_the_model_is_skipped():
    model = loaded(Louder, skip_check=True)
    assert model.passes["louder of odd-passes"].outcome is Outcome.DIFFERS


def test_a_change_that_cannot_be_undone_ends_the_start_with_the_name_of_its_pass():
    with pytest.raises(ModelError, match=r"'cannot-undo of odd-passes' cannot be undone: OSError"):
        loaded(CannotUndo)


class Reads(Louder):
    """Changes what the model's own code computes."""

    name = "reads"

    def apply(self, model, facts, changes):
        head = model.module.get_output_embeddings()
        changes.set(head, "forward", lambda x: type(head).forward(head, x).flip(-1))
        return "the head"


def test_a_model_that_runs_its_own_code_is_compared_with_that_of_before():
    model = loaded(Reads, family="gpt2")
    assert isinstance(model.forward, ModuleForward)
    assert model.passes["reads of odd-passes"].outcome is Outcome.DIFFERS
    assert tokens(model) == worker_tools.generated("gpt2")


def fail(*_):
    raise RuntimeError("no such part")


def test_own_code_runs_where_fusion_fails(monkeypatch):
    monkeypatch.setattr(Fusion, "apply", fail)
    model = loaded()
    assert isinstance(model.forward, ModuleForward)
    assert model.passes["fusion"].outcome is Outcome.FAILED
    assert tokens(model) == worker_tools.generated("llama")


def test_torch_computes_where_a_kernel_library_fails(monkeypatch):
    monkeypatch.setattr(CpuKernels, "rms_norm", fail)
    model = loaded(kernels=FoundKernels(CpuKernels(), True))
    assert model.passes["kernels"].outcome is Outcome.FAILED
    assert all(isinstance(layer.attention, FusedAttention) for layer in model.forward.layers)
    assert tokens(model) == worker_tools.generated("llama")


def test_paths_of_layers_with_state_outlive_a_fusion_that_differs(monkeypatch):
    """They are compared with the fused model, and alone where there is none."""
    monkeypatch.setattr(Fusion, "is_right", lambda *_: False)
    model = loaded(family="qwen3_next")
    assert not isinstance(model.forward, FusedForward)
    assert model.passes.used == ["mixers", "experts"]
    assert all(mixer.path is not None for mixer in model.mixers)


def test_passes_that_make_a_choice_are_run_once(monkeypatch):
    seen = []
    original = ChosenKernels.apply
    monkeypatch.setattr(ChosenKernels, "apply", lambda *given: seen.append(1) or original(*given))
    model = loaded(kernels=FoundKernels(CpuKernels(), True))
    assert seen == [1]
    text = model.passes["kernels"].text
    assert text.startswith("3 × attention, ")
    assert f": {text}" in model.chosen_kernels
