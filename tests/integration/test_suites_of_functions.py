"""Suites that need only a name, over every installed implementation of this repository: none is rejected."""

from __future__ import annotations

import pytest

from tenonry.cli import COMMANDS
from tenonry.plugin.discovery import installed
from tenonry.plugin.kinds import HOOK_MODULES, PROGRESS_BARS, REQUEST_CHECKS, SETTINGS
from tenonry_commands.plugins import PLUGIN_COMMANDS
from tenonry_hf_hub.located import MODELS
from tenonry_testkit.command import CommandContract
from tenonry_testkit.hook_module import HookModuleContract
from tenonry_testkit.model import ModelContract
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.progress_bar import ProgressBarContract
from tenonry_testkit.request_check import RequestCheckContract
from tenonry_testkit.settings import SettingsContract

SUITES = [
    (COMMANDS, CommandContract, "command"),
    (PLUGIN_COMMANDS, CommandContract, "command"),
    (HOOK_MODULES, HookModuleContract, "hook_module"),
    (MODELS, ModelContract, "model"),
    (PROGRESS_BARS, ProgressBarContract, "progress_bar"),
    (REQUEST_CHECKS, RequestCheckContract, "request_check"),
    (SETTINGS, SettingsContract, "settings"),
]
CASES = [
    pytest.param(suite, attribute, record.target, id=f"{record.kind}-{record.name}")
    for point, suite, attribute in SUITES
    for record in installed(point)
]


@pytest.mark.parametrize(("suite", "attribute", "target"), CASES)
def test_first_party_plugins_pass(suite, attribute, target):
    assert failing_tests(type("Suite", (suite,), {attribute: target})) == {}
