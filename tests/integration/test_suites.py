"""Every kind and point has a suite, every suite a corpus of broken plugins."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from tenonry.plugin.kinds import POINTS, SETTINGS
from tenonry_commands.plugins import points
from tenonry_testkit.suites import SUITES

ROOT = Path(__file__).parents[2]
KINDS = {point.kind for point in [*points(), SETTINGS]} - {POINTS.kind}
TESTKIT = "tests/testkit/tests"
# The broken plugins on which a suite is tried.
CORPORA = {
    "attention_backend": ["plugins/torch-base/tests/attention/test_backend_contract.py"],
    "buffers": ["plugins/torch-base/tests/test_buffers_contract.py"],
    "call_set": [f"{TESTKIT}/test_call_set_contract.py"],
    "command": [f"{TESTKIT}/test_command_contract.py"],
    "coordination": [f"{TESTKIT}/test_coordination_contract.py"],
    "drafter": [f"{TESTKIT}/test_drafter_contract.py"],
    "engine_recovery": [f"{TESTKIT}/test_engine_recovery_contract.py"],
    "executor": [f"{TESTKIT}/test_other_contracts.py"],
    "grammar": [f"{TESTKIT}/test_grammar_contract.py"],
    "hook_module": [f"{TESTKIT}/test_hook_module_contract.py"],
    "image_processor": ["plugins/images/tests/test_processor_contract.py"],
    "io_processor": [f"{TESTKIT}/test_other_contracts.py"],
    "kv_connector": [f"{TESTKIT}/test_kv_connector_contract.py"],
    "launcher": [f"{TESTKIT}/test_launcher_contract.py"],
    "load_balancer": [f"{TESTKIT}/test_load_balancer_contract.py"],
    "logits_processor": ["plugins/torch-base/tests/sampler/test_logits_processor_contract.py"],
    "model": ["plugins/hf-hub/tests/test_model_contract.py"],
    "model_pass": ["plugins/worker-torch/tests/passes/odd_passes.py"],
    "output_parser": [f"{TESTKIT}/test_output_parser_contract.py"],
    "plugin_command": [f"{TESTKIT}/test_command_contract.py"],
    "progress_bar": [f"{TESTKIT}/test_progress_bar_contract.py"],
    "quantisation": ["plugins/quantisations/tests/test_broken.py"],
    "request_check": [f"{TESTKIT}/test_request_check_contract.py"],
    "request_codec": [f"{TESTKIT}/test_request_codec_contract.py"],
    "route": ["plugins/openai-server/tests/test_route_contract.py"],
    "runner_feature": ["plugins/worker-torch/tests/runner/odd_features.py"],
    "scheduler": [
        f"{TESTKIT}/test_broken_schedulers.py",
        f"{TESTKIT}/test_broken_snapshots.py",
        f"{TESTKIT}/test_broken_caches.py",
        "schedulers/batching/tests/test_broken_policy_hosts.py",
    ],
    "settings": [f"{TESTKIT}/test_settings_contract.py"],
    "stat_logger": [f"{TESTKIT}/test_other_contracts.py"],
    "step_observer": [f"{TESTKIT}/test_step_observer_contract.py"],
    "worker": [f"{TESTKIT}/test_worker_contract.py"],
}
FEW = 8
MANY = {"scheduler": 40}


def corpus(file: str) -> int:
    """Number of broken plugins in a file: classes with `caught_by`, and entries of the dictionary `BROKEN`."""
    number = 0
    for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))):
        match node:
            case ast.ClassDef(body=body):
                number += any("caught_by" in names(each) for each in body)
            case ast.Assign(value=ast.Dict(keys=keys)) if "BROKEN" in names(node):
                number += len(keys)
    return number


def names(statement: ast.stmt) -> set[str]:
    """Names that an assignment binds."""
    match statement:
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def test_every_kind_and_point_has_a_suite():
    assert SUITES.keys() == KINDS


@pytest.mark.parametrize("kind", SUITES)
def test_a_suite_names_its_plugin_by_an_attribute(kind):
    suite = SUITES[kind]
    known = [inspect.get_annotations(base) for base in suite.load().__mro__]
    assert any(suite.attribute in each for each in known)


@pytest.mark.parametrize("kind", CORPORA)
def test_a_suite_is_tried_on_broken_plugins(kind):
    """A file that several suites share has enough for each."""
    sharing = {SUITES[other] for other, files in CORPORA.items() if files == CORPORA[kind]}
    suites = {(suite.module, suite.name) for suite in sharing}
    assert sum(map(corpus, CORPORA[kind])) >= MANY.get(kind, FEW) * len(suites)


def test_every_suite_has_a_corpus():
    assert SUITES.keys() - CORPORA.keys() <= {"scheduling_policy", "step_kernels"}
