"""Operations of one engine (AF-14, EC-13): what is held is not stepped, and requests keep their place."""

from __future__ import annotations

import pytest

from tenonry.errors import ConfigError, Unsupported
from tenonry_operations.engine import EngineOperations
from tenonry_testkit.kernel.engine import Inbox, expected, make_core, request

WORKER = "tenonry_testkit.kernel.faulty:FaultyWorker"


@pytest.fixture
def core():
    return make_core(worker=WORKER)


@pytest.fixture
def operations(core):
    return EngineOperations(core)


@pytest.fixture
def updates(core, monkeypatch):
    """The worker takes new weights, and fails when the source says so."""
    asked: list[tuple[str, str]] = []

    def check(source: str, names: list[str] | None) -> None:
        asked.append(("check", source))
        if source == "unfit":
            raise ValueError("it does not fit")

    def update(source: str, names: list[str] | None) -> None:
        asked.append(("update", source))
        if source == "half":
            raise ValueError("it ended early")

    worker = core.executor.worker
    monkeypatch.setattr(
        type(worker), "rpc_methods", worker.rpc_methods | {"check_update", "update_weights"}
    )
    monkeypatch.setattr(type(worker), "capabilities", worker.capabilities | {"weights"})
    worker.check_update = check
    worker.update_weights = update
    return asked


def begun(core, handle=1, steps=2):
    source = request(handle)
    assert core.add_request(source) is None
    inbox = Inbox()
    for _ in range(steps):
        inbox.take(core.step()[0])
    return source, inbox


class TestHold:
    def test_what_is_held_is_not_stepped_and_goes_on_afterwards(self, core, operations):
        source, inbox = begun(core)
        operations.hold()
        assert operations.is_held()
        inbox.run(core)
        assert len(inbox.tokens[1]) < len(expected(core, source))
        assert core.request_counts() == (1, 0)
        operations.release()
        assert inbox.run(core).tokens[1] == expected(core, source)


class TestSleep:
    def test_requests_wait_and_get_the_same_tokens(self, core, operations):
        source, inbox = begun(core)
        operations.sleep(1)
        late = request(2)
        assert core.add_request(late) is None
        assert not inbox.run(core).tokens.get(2)
        assert core.has_work() is False
        operations.wake_up()
        inbox.run(core)
        assert inbox.tokens[1] == expected(core, source)
        assert inbox.tokens[2] == expected(core, late)

    def test_or_are_refused(self, core):
        operations = EngineOperations(core, refuses_asleep=True)
        operations.sleep(1)
        refused = core.add_request(request(1))
        assert "it sleeps; wake it up first" in refused.error
        operations.wake_up()
        assert core.add_request(request(1)) is None

    def test_a_hold_outlasts_it(self, core, operations):
        begun(core)
        operations.hold()
        operations.sleep(1)
        operations.wake_up()
        assert core.has_work() is False
        operations.release()
        assert core.has_work()

    def test_a_sleep_that_fails_before_it_began_changes_nothing(
        self, core, operations, monkeypatch
    ):
        source, inbox = begun(core)

        def fail(level: int) -> None:
            raise RuntimeError("no")

        monkeypatch.setattr(core.executor.worker, "sleep", fail)
        with pytest.raises(RuntimeError, match="no"):
            operations.sleep(1)
        assert inbox.run(core).tokens[1] == expected(core, source)

    def test_blocks_that_a_transfer_uses_are_named(self, core, operations, monkeypatch):
        monkeypatch.setattr(core.scheduler, "reset_prefix_cache", lambda _: False)
        with pytest.raises(Unsupported, match="still in use by a transfer"):
            operations.sleep(1)
        assert core.held == ""


class TestUpdate:
    def test_outputs_carry_the_version(self, core, updates):
        operations = EngineOperations(core)
        source, inbox = begun(core)
        operations.update_weights("good", None, "v2")
        outputs, _ = core.step()
        while not outputs:
            outputs, _ = core.step()
        assert outputs[0].weight_version == "v2"
        inbox.take(outputs)
        assert inbox.run(core).tokens[1] == expected(core, source)
        assert updates == [("check", "good"), ("update", "good")]

    def test_what_does_not_fit_changes_nothing(self, core, updates):
        operations = EngineOperations(core)
        source, inbox = begun(core)
        with pytest.raises(ValueError, match="does not fit"):
            operations.update_weights("unfit", None, "v2")
        assert core.weight_version == ""
        assert inbox.run(core).tokens[1] == expected(core, source)

    def test_half_an_update_serves_no_one_until_a_good_one(self, core, updates):
        operations = EngineOperations(core)
        source, inbox = begun(core)
        with pytest.raises(ValueError, match="ended early"):
            operations.update_weights("half", None, "v2")
        operations.release()
        assert core.has_work() is False
        assert "an update that failed" in core.add_request(request(2)).error
        operations.update_weights("good", None, "v3")
        assert core.add_request(request(3)) is None
        assert inbox.run(core).tokens[1] == expected(core, source)

    @pytest.mark.parametrize("version", ["two words", "\n", "x" * 257])
    def test_versions_are_short_and_plain(self, core, updates, version):
        with pytest.raises(ConfigError, match="printable characters"):
            EngineOperations(core).update_weights("good", None, version)
        assert updates == []

    def test_a_worker_without_it_is_named(self, core):
        with pytest.raises(Unsupported, match="does not support 'check_update'"):
            EngineOperations(core).update_weights("good")
