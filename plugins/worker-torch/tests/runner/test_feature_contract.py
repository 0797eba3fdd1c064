"""The suite of runner features over correct ones, and over features with one defect each."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tenonry.errors import PluginFault
from tenonry.step import SchedulerOutput
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.runner_feature import RunnerFeatureContract

pytestmark = pytest.mark.slow  # whole models

FILE = Path(__file__).parent / "odd_features.py"
SPEC = importlib.util.spec_from_file_location("odd_features", FILE)
ODD = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(ODD)
BROKEN = [name for name, found in vars(ODD).items() if hasattr(found, "caught_by")]


class TestHidden(RunnerFeatureContract):
    feature = f"{FILE}:Hidden"


@pytest.mark.nightly
class TestForbids(RunnerFeatureContract):
    feature = f"{FILE}:Forbids"
    changes_tokens = True


@pytest.mark.nightly_after(2)
@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.broken("runner_feature")
def test_a_defect_is_detected_by_the_test_that_names_it(name):
    class Suite(RunnerFeatureContract):
        feature = f"{FILE}:{name}"

    wanted = getattr(ODD, name).caught_by
    assert list(failing_tests(Suite, [wanted])) == [wanted]
    Suite.teardown_class()


def test_an_error_names_the_feature_and_its_hook():
    class Suite(RunnerFeatureContract):
        feature = f"{FILE}:RefusesDummies"

    suite = Suite()
    suite.setup_method()
    worker = suite.started()
    with pytest.raises(PluginFault, match=r"RefusesDummies.*dummy"):
        worker.execute_dummy_batch()
    assert worker.execute_model(SchedulerOutput(step_id=0)).step_id == 0
    suite.teardown_method()
    Suite.teardown_class()
