"""The makers of step kernels: by type of parts, also in subclasses."""

from __future__ import annotations

from tenonry_torch_base.kernel_parts import BestAllowedParts, GateParts
from tenonry_torch_base.step_kernels import Refusal, StepKernels, makes


class Gates(StepKernels):
    name = "gates"

    @classmethod
    def refusal(cls):
        return None

    @makes(GateParts)
    def gate(self, parts):
        return "gate"


class Others(Gates):
    """Replaces one maker, and adds another."""

    def gate(self, parts):
        return Refusal("none today")

    @makes(BestAllowedParts)
    def search(self, parts):
        return "search"


def test_parts_go_to_the_method_that_makes_their_type():
    assert Gates().make(GateParts()) == "gate"
    assert Others().make(BestAllowedParts()) == "search"


def test_parts_without_a_maker_are_refused_by_name():
    refused = Gates().make(BestAllowedParts())
    assert refused == Refusal("step kernels 'gates' have none for BestAllowedParts")


def test_a_subclass_replaces_a_maker_by_its_name():
    assert Others().make(GateParts()) == Refusal("none today")
    assert Gates.makers == {GateParts: "gate"}
