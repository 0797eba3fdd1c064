"""Step observers: every installed one follows the engine, and each fault names whose it is."""

from __future__ import annotations

import logging
import sys

import msgspec
import pytest

from tenonry.engine.build import build_engine
from tenonry.errors import ContractViolation, PluginFault, PluginIncompatible
from tenonry.plugin.discovery import EXPERIMENTAL
from tenonry.plugin.manager import PluginManager
from tenonry_testkit.fakes.model import FakeModelHooks
from tenonry_testkit.kernel.engine import Inbox, expected, fake_config, make_core, request

OBSERVER = """
from tenonry.errors import RequestError
from tenonry.interfaces.step_observer import StepObserver
class Tape(StepObserver):
    fails, error = "", RuntimeError("the tape is full")
    def __init__(self, context):
        super().__init__(context)
        self.calls = []
    def note(self, call, value):
        self.calls.append((call, value))
        if call == self.fails:
            raise self.error
    def shutdown(self): ENDED.append(type(self).__name__)
    def added(self, request): self.note("added", request.handle)
    def ended(self, handle): self.note("ended", handle)
    def scheduled(self, output): self.note("scheduled", output.step_id)
    def answered(self, result): self.note("answered", result.step_id)
class Full(Tape):
    fails = "scheduled"
class LateFull(Tape):
    fails = "answered"
class Refusing(Tape):
    fails, error = "added", RequestError("no room on the tape")
class Unsure(Tape):
    @classmethod
    def observes(cls, config): raise OSError("no such file")
class Unbuilt(Tape):
    def __init__(self, context): raise OSError("no permission")
class Idle(Tape):
    @classmethod
    def observes(cls, config): return False
class Strict(Tape):
    def scheduled(self, output): raise ValueError("unknown row")
class Other: pass
ENDED = []
"""


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch, no_outside_settings: None) -> None:
    """Step observers are an alpha point."""
    monkeypatch.setenv(EXPERIMENTAL, "1")


def install(site, name: str) -> None:
    site.install(
        "acme-tape",
        modules={"acme_tape.py": OBSERVER},
        entry_points={"tenonry.step_observers": {"tape": f"acme_tape:{name}"}},
    )


def test_an_installed_observer_follows_each_step(site):
    install(site, "Tape")
    core = make_core()
    (tape,) = [each for record, each in core.observers if record.name == "tape"]
    source = request(1, max_tokens=2)
    core.add_request(source)
    assert Inbox().run(core).tokens[1] == expected(core, source)
    assert tape.calls == [
        ("added", 1),
        ("scheduled", 0),
        ("answered", 0),
        ("scheduled", 1),
        ("answered", 1),
        ("ended", 1),
        ("scheduled", 2),  # its row leaves
        ("answered", 2),
    ]


def test_one_that_is_not_needed_is_not_built(site):
    install(site, "Idle")
    assert [record.name for record, _ in make_core().observers] == ["validator"]


def test_an_observer_that_raises_is_named(site):
    install(site, "Full")
    core = make_core()
    core.add_request(request(1))
    with pytest.raises(PluginFault, match=r"tape.*scheduled: RuntimeError: the tape is full"):
        core.step()


@pytest.mark.parametrize(
    ("name", "call"), [("LateFull", "answered: RuntimeError"), ("Refusing", "added: RequestError")]
)
def test_whatever_it_raises_ends_the_engine(site, name, call):
    """Also in a call that answers its errors, and an error that stands for one request elsewhere."""
    install(site, name)
    core = make_core()

    def run() -> None:
        core.add_request(request(1))
        core.step()
        core.reset_prefix_cache()

    with pytest.raises(PluginFault, match=rf"tape.*{call}"):
        run()
    with pytest.raises(PluginFault, match="tape"):
        core.step()


def test_a_broken_scheduler_is_blamed_before_others_see_its_step(site, monkeypatch):
    install(site, "Strict")
    core = make_core()
    core.add_request(request(1))
    schedule = core.scheduler.schedule

    def broken():
        output = schedule()
        output.row += 77
        return output

    monkeypatch.setattr(core.scheduler, "schedule", broken)
    with pytest.raises(ContractViolation):
        core.step()


def test_one_that_cannot_say_whether_it_is_needed_is_named(site):
    install(site, "Unsure")
    with pytest.raises(PluginFault, match=r"tape.*observes: OSError: no such file"):
        make_core()


def test_a_failed_build_shuts_down_what_was_built(site, monkeypatch):
    install(site, "Unbuilt")
    ended = []
    monkeypatch.setattr(
        "tenonry_testkit.fakes.ReferenceScheduler.shutdown", lambda _: ended.append("scheduler")
    )
    with pytest.raises(PluginFault, match="no permission"):
        make_core()
    assert ended == ["scheduler"]


def test_it_is_shut_down_with_the_engine(site):
    install(site, "Tape")
    core = make_core()
    core.shutdown()
    assert sys.modules["acme_tape"].ENDED == ["Tape"]


def test_a_class_of_another_kind_is_refused_before_anything_starts(site):
    install(site, "Other")
    with pytest.raises(PluginIncompatible, match=r"is not a subclass of .*StepObserver"):
        make_core()


def test_an_engine_without_the_validator_reports_it(caplog):
    config = fake_config()
    manager = PluginManager(discover=False)
    manager.register(FakeModelHooks())
    plan = manager.plan(config, launcher=False)
    entries = tuple(entry for entry in plan.entries if entry.kind != "step_observer")
    with caplog.at_level(logging.WARNING, logger="tenonry"):
        build_engine(
            config, manager.resolve_model(config), msgspec.structs.replace(plan, entries=entries)
        )
    assert "without the step observer 'validator'; pip install tenonry-scheduling" in caplog.text
