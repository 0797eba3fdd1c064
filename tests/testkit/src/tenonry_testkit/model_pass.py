"""The conformance suite of model passes of the worker `torch`: answers stay the same, and undoing works. Test process.

from tenonry_testkit.model_pass import ModelPassContract

class TestMine(ModelPassContract):
    model_pass = "my_package:MyPass"

All tests of `WorkerContract` run on a worker with the pass, and tokens are compared with those of a worker without it.
Needs the worker: install `tenonry-worker-torch`, and `tenonry-demo-model` unless `model` names another one, which the
pass must be for.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tenonry.plugin.manager import resolve_point
from tenonry.point import Point
from tenonry_testkit.worker_part import WorkerPartContract

PLAIN = (str, int, float, bool, bytes, type(None))
DEPTH = 6
KEPT = (
    "torch",
    "tenonry_torch_base.attention",
    "tenonry_worker_torch_cpu.attention",
)  # modules are compared separately; caches change with each run


class ModelPassContract(WorkerPartContract):
    """Subclass in a test module and name the `model_pass`. See `WorkerPartContract` for `model`."""

    model_pass: ClassVar[str] = ""
    point = Point(
        "tenonry.model_passes",
        "tenonry_worker_torch.passes.model_pass:ModelPass",
        kind="model_pass",
    )
    option = "model_passes"

    def part(self) -> str:
        if not self.model_pass:
            raise TypeError(
                'this suite names nothing to test; add the line:  model_pass = "my_package:MyPass"'
            )
        return self.model_pass

    def _loaded(self, **options: Any) -> Any:
        """Return an unshared model of a loaded worker."""
        self.options = {self.option: [self.part()], "step_kernels": "none"} | options
        worker: Any = self.built()
        worker.examine()
        worker.load()
        return worker.model

    def _result(self, model: Any) -> Any:
        """Result of the pass under test."""
        found, _ = resolve_point(self.point, self.part())
        (result,) = [
            each
            for each in model.passes.results
            if each.name == found.name or each.name.startswith(f"{found.name} of ")
        ]
        return result

    def test_is_used(self) -> None:
        """It applies to the model of the suite, with the model's results."""
        result = self._result(self._loaded())
        assert result.outcome.value == "used", f"{result.outcome.value}: {result.text}"
        assert result.text, "`apply` returns no words for the log"

    def test_is_undone_without_a_trace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """After different results, everything is restored: attributes, modules and weights."""
        found, _ = resolve_point(self.point, self.part())
        apply = found.apply
        before: dict[str, object] = {}

        def watched(model_pass: Any, model: Any, facts: Any, changes: Any) -> str:
            before.update(snapshot(model))
            text: str = apply(model_pass, model, facts, changes)
            return text

        monkeypatch.setattr(found, "apply", watched)
        monkeypatch.setattr(found, "is_right", lambda *_: False)
        model = self._loaded()
        assert self._result(model).outcome.value == "differs"
        assert_same(before, snapshot(model))

    def test_why_not_changes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It only reads the model."""
        found, _ = resolve_point(self.point, self.part())
        why_not = found.why_not
        pairs = []

        def watched(model_pass: Any, model: Any, facts: Any) -> Any:
            before = snapshot(model)
            reason = why_not(model_pass, model, facts)
            pairs.append((before, snapshot(model)))
            return reason

        monkeypatch.setattr(found, "why_not", watched)
        self._loaded()
        for before, after in pairs:
            assert_same(before, after)

    def test_models_of_other_structure_are_declined(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A model without fused layers is either supported, or declined with a reason."""
        fusion = "tenonry_worker_torch.passes.fusion.Fusion.why_not"
        monkeypatch.setattr(fusion, lambda *_: "switched off by a test")
        result = self._result(self._loaded())
        assert result.outcome.value in {"used", "not used"}, (
            f"{result.outcome.value}: {result.text}"
        )
        assert result.text


def snapshot(model: Any) -> dict[str, object]:
    """Objects of a loaded model by their path: of its forward pass, and of its modules."""
    found: dict[str, object] = {}
    _collect(model.forward, "forward", found, DEPTH)
    for name, module in model.module.named_modules():
        for key, value in vars(module).items():
            found[f"module {name}.{key}"] = value
        for key, part in (*module.named_children(), *module.named_parameters(recurse=False)):
            found[f"module {name}.{key}"] = part
    return found


def _collect(owner: object, path: str, found: dict[str, object], depth: int) -> None:
    found[path] = owner
    if not depth or isinstance(owner, (*PLAIN, type)):
        return
    if type(owner).__module__.startswith(KEPT):
        return
    if isinstance(owner, (list, tuple)):
        parts: dict[str, object] = {str(number): each for number, each in enumerate(owner)}
    elif isinstance(owner, dict):
        parts = {str(key): each for key, each in owner.items()}
    else:
        names = [*getattr(owner, "__dict__", ()), *getattr(type(owner), "__slots__", ())]
        parts = {name: getattr(owner, name, None) for name in names}
    for name, part in parts.items():
        _collect(part, f"{path}.{name}", found, depth - 1)


def assert_same(before: dict[str, object], after: dict[str, object]) -> None:
    """Compare identities; equal plain values and containers count as the same."""
    assert before, "the pass was not applied"
    changed = [
        path
        for path in sorted({*before, *after})
        if path not in before or path not in after or not _is_same(before[path], after[path])
    ]
    assert not changed, f"changed without `changes`: {', '.join(changed[:8])}"


def _is_same(one: object, other: object) -> bool:
    if one is other:
        return True
    return isinstance(one, (*PLAIN, list, tuple, dict, set)) and type(one) is type(other)
