"""The suite of model passes over a correct one, and over passes with one defect each."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tenonry_testkit.model_pass import ModelPassContract
from tenonry_testkit.outcomes import failing_tests

pytestmark = pytest.mark.slow  # whole models

FILE = Path(__file__).parent / "odd_passes.py"
SPEC = importlib.util.spec_from_file_location("odd_passes", FILE)
ODD = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(ODD)
BROKEN = [name for name, found in vars(ODD).items() if hasattr(found, "caught_by")]


class TestGood(ModelPassContract):
    model_pass = f"{FILE}:Good"


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.broken("model_pass")
def test_a_defect_is_detected_by_the_test_that_names_it(name):
    class Suite(ModelPassContract):
        model_pass = f"{FILE}:{name}"

    wanted = getattr(ODD, name).caught_by
    assert list(failing_tests(Suite, [wanted])) == [wanted]
    Suite.teardown_class()
