"""The suite of quantisations detects broken implementations, each by the test that names the defect."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from quantised_models import GROUP, split

from tenonry_quantisations.gptq import Gptq
from tenonry_quantisations.int8 import Int8
from tenonry_quantisations.linear8 import Linear8
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.quantisation import QuantisationContract, StoredExample
from tenonry_testkit.tiers import nightly_unless

PRODUCT = "test_a_layer_is_the_product_with_its_matrix"


class WithLayer(Int8):
    """As the original, with layers of another class."""

    layer_class: type = Linear8

    def linear(self, weight, bias, dtype):
        return self.layer_class(weight, bias, dtype)


class ForgetsTheBias(WithLayer):
    caught_by = PRODUCT

    class layer_class(Linear8):
        def __init__(self, weight, bias, dtype):
            super().__init__(weight, None, dtype)


class AddsInPlace(WithLayer):
    caught_by = PRODUCT

    class layer_class(Linear8):
        def add(self, x, other):
            return other.add_(self(x))


class ChangesItsInput(WithLayer):
    caught_by = PRODUCT

    class layer_class(Linear8):
        def __call__(self, x):
            return super().__call__(x.mul_(0.5)) * 2


class AnswersInFloat32(WithLayer):
    caught_by = PRODUCT

    class layer_class(Linear8):
        def __call__(self, x):
            return super().__call__(x).float()


class FailsOnNoRows(WithLayer):
    caught_by = PRODUCT

    class layer_class(Linear8):
        def __call__(self, x):
            return super().__call__(x) * (1 / len(x))


class OneScaleForAllRows(WithLayer):
    caught_by = "test_a_row_depends_on_no_other"

    class layer_class(Linear8):
        def __call__(self, x):
            scale = x.abs().max() / 127
            return super().__call__((x / scale).round() * scale)


class TurnsNaNIntoNumbers(WithLayer):
    caught_by = "test_what_is_not_a_number_does_not_become_one"

    class layer_class(Linear8):
        def __call__(self, x):
            return super().__call__(x.nan_to_num())


class DividesByZero(WithLayer):
    caught_by = "test_a_row_of_zeros_gives_the_bias"

    class layer_class(Linear8):
        def __call__(self, x):
            size = x.abs().amax(1, keepdim=True)
            return super().__call__(x / size) * size


class TooFewBits(Int8):
    caught_by = "test_floats_are_quantised_within_the_tolerance"

    def quantise(self, weight):
        made = super().quantise(weight)
        return replace(made, values=made.values // 32 * 32)


class QuantisesInPlace(Int8):
    caught_by = "test_floats_are_quantised_within_the_tolerance"

    def quantise(self, weight):
        return super().quantise(weight.mul_(2))


class ReadsEverything(Int8):
    caught_by = "test_reads_no_other_format"

    @classmethod
    def reads(cls, config):
        return True


class LiesAboutItsTolerance(Int8):
    caught_by = "test_is_described"
    tolerance = 2.0


CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}


class WrongStep(Gptq):
    """Takes the older format for the newer one."""

    caught_by = "test_a_stored_matrix_has_the_shape_and_the_numbers_of_the_format"

    def __init__(self, config=None):
        super().__init__(config)
        self.taken_off = 0


class LooksAtNothing(Gptq):
    caught_by = "test_a_part_that_is_missing_is_named"

    def shape(self, name, stored):
        return (stored["qweight"].shape[1], stored["qweight"].shape[0] * 8)


class LooksAtNames(LooksAtNothing):
    caught_by = "test_a_part_of_another_shape_or_type_is_named"


class ReadsNothing(Gptq):
    caught_by = "test_reads_its_own_checkpoints"

    @classmethod
    def reads(cls, config):
        return False


def suite_of(broken):
    class Suite(QuantisationContract):
        quantisation = broken

        def stored(self):
            if not issubclass(broken, Gptq):
                return None
            torch.manual_seed(7)
            parts, made = split(torch.randn(32, 96), CONFIG, "gptq")
            return StoredExample(CONFIG, parts, made, ("qweight", "qzeros", "scales"))

    return Suite


BROKEN = [
    ForgetsTheBias,
    AddsInPlace,
    ChangesItsInput,
    AnswersInFloat32,
    FailsOnNoRows,
    OneScaleForAllRows,
    TurnsNaNIntoNumbers,
    DividesByZero,
    TooFewBits,
    QuantisesInPlace,
    ReadsEverything,
    LiesAboutItsTolerance,
    WrongStep,
    LooksAtNothing,
    LooksAtNames,
    ReadsNothing,
]


@pytest.mark.parametrize(
    "broken",
    nightly_unless(lambda broken: BROKEN.index(broken) % 4 == 0, BROKEN),
    ids=lambda broken: broken.__name__,
)
@pytest.mark.slow
@pytest.mark.nightly_after(2)
@pytest.mark.broken("quantisation")
def test_the_suite_finds_it(broken):
    assert broken.caught_by in failing_tests(suite_of(broken), [broken.caught_by])


@pytest.mark.parametrize("sound", [Int8, Gptq])
def test_the_suite_finds_nothing_in_what_is_sound(sound):
    names = {broken.caught_by for broken in BROKEN if issubclass(broken, sound)}
    assert failing_tests(suite_of(sound), sorted(names)) == {}
