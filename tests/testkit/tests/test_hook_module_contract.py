"""The suite of hook modules, over one that is right and over broken ones."""

from __future__ import annotations

import itertools
import os
import types
from pathlib import Path
from typing import ClassVar

import pytest

from tenonry.errors import ConfigError
from tenonry.plugin.hookspecs import hookimpl
from tenonry_testkit.fakes.executor import InstantExecutor
from tenonry_testkit.hook_module import HookModuleContract
from tenonry_testkit.outcomes import failing_tests

ACCEPTS = "test_it_is_a_hook_module_that_the_kernel_accepts"
OTHERS = "test_names_of_others_are_left_to_others"
KIND = "test_answers_name_plugins_of_their_kind"
FAKE = "tenonry_testkit.fakes.executor:InstantExecutor"


def module(**members):
    made = types.ModuleType("hooks_under_test")
    vars(made).update(members)
    return made


@hookimpl
def instant(name, config):
    return FAKE if name == "instant" and config.world_size == 1 else None


@hookimpl
def few_requests(config):
    if config.max_num_seqs > 1000:
        raise ConfigError(f"max_num_seqs={config.max_num_seqs}: at most 1000 here")


GOOD = module(tenonry_get_executor=instant, tenonry_configured=few_requests, is_idle=lambda: False)


class TestGood(HookModuleContract):
    hook_module = GOOD
    answers: ClassVar = {"executor": ["instant"]}


@hookimpl
def everything(name):
    return FAKE


@hookimpl
def a_class(name):
    return InstantExecutor if name == "instant" else None


@hookimpl
def without_a_class(name):
    return "tenonry_testkit.fakes.executor" if name == "instant" else None


@hookimpl
def nowhere(name):
    return "no_such_module:Executor" if name == "instant" else None


@hookimpl
def another_kind(name):
    return "tenonry_testkit.fakes.worker:FakeWorker" if name == "instant" else None


@hookimpl
def not_its_own(name):
    return FAKE if name == "other" else None


@hookimpl
def wrong_argument(names):
    return None


def unmarked(name):
    return None


COUNT = itertools.count()


@hookimpl
def alternates(name):
    return FAKE if name == "instant" and next(COUNT) % 2 else None


@hookimpl
def sets_a_variable(name):
    os.environ["TENONRY_TEST_HOOK"] = str(next(COUNT))


@hookimpl
def reads_a_file(name):
    Path("/proc/self/status").read_text("utf-8")


@hookimpl
def rejects_with_its_own_error(config):
    if config.max_num_seqs < 8:
        raise KeyError("max_num_seqs")


@hookimpl
def rejects_everything(config):
    raise ConfigError("not on this machine")


@hookimpl
def answers_a_path(config):
    return "/models/1"


@hookimpl
def knows_one_model(config):
    return {"fake": None}[config.model]


@hookimpl
def expects_an_engine(info):
    return info.plugins[0].name


BROKEN = {
    "misspelt": (module(tenonry_get_excutor=instant), ACCEPTS),
    "wrong_argument": (module(tenonry_get_executor=wrong_argument), ACCEPTS),
    "nothing": (module(), "test_it_implements_a_hook"),
    "unmarked": (
        module(tenonry_get_executor=instant, tenonry_get_worker=unmarked),
        "test_it_implements_a_hook",
    ),
    "everything": (module(tenonry_get_executor=everything), OTHERS),
    "a_class": (module(tenonry_get_executor=a_class), KIND),
    "without_a_class": (module(tenonry_get_executor=without_a_class), KIND),
    "nowhere": (module(tenonry_get_executor=nowhere), KIND),
    "another_kind": (module(tenonry_get_executor=another_kind), KIND),
    "not_its_own": (module(tenonry_get_executor=not_its_own), "test_it_answers_its_own_names"),
    "alternates": (
        module(tenonry_get_executor=alternates),
        "test_the_same_question_has_the_same_answer",
    ),
    "sets_a_variable": (
        module(tenonry_get_executor=sets_a_variable),
        "test_choosing_has_no_effects",
    ),
    "reads_a_file": (module(tenonry_get_executor=reads_a_file), "test_choosing_has_no_effects"),
    "its_own_error": (
        module(tenonry_configured=rejects_with_its_own_error),
        "test_a_configuration_is_accepted_or_rejected",
    ),
    "rejects_everything": (
        module(tenonry_configured=rejects_everything),
        "test_a_configuration_is_accepted_or_rejected",
    ),
    "answers_a_path": (
        module(tenonry_resolve_model=answers_a_path),
        "test_a_model_that_is_not_its_own_is_left_or_rejected",
    ),
    "knows_one_model": (
        module(tenonry_resolve_model=knows_one_model),
        "test_a_model_that_is_not_its_own_is_left_or_rejected",
    ),
    "expects_an_engine": (
        module(tenonry_engine_ready=expects_an_engine),
        "test_it_is_told_that_engines_are_ready",
    ),
    "idle_text": (
        module(tenonry_get_executor=instant, is_idle=lambda: "no"),
        "test_it_says_whether_it_is_idle",
    ),
}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setenv("TENONRY_TEST_HOOK", "")


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.broken("hook_module")
def test_broken_ones_are_caught(name):
    broken, wanted = BROKEN[name]
    fields = {"hook_module": broken, "answers": {"executor": ["instant"]}}
    assert wanted in failing_tests(type("Suite", (HookModuleContract,), fields), [wanted])


def test_every_test_of_the_suite_catches_one():
    tests = {name for name in dir(HookModuleContract) if name.startswith("test_")}
    assert tests == {wanted for _, wanted in BROKEN.values()}
