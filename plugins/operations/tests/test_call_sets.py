"""Both call sets over an engine: what the worker declares works, anything else is rejected by name (EC-13)."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tenonry.engine.core import EngineCore
from tenonry.engine.utility import EngineUtilities, answer
from tenonry.messages import UtilityCall, UtilityResult
from tenonry_testkit.kernel.engine import make_core
from tenonry_testkit.kernel.faulty import CALLS

WORKER = {"name": "tenonry_testkit.kernel.faulty:FaultyWorker", "options": {}}
NO_PORTS: Any = None  # no client is attached here


@pytest.fixture
def core() -> EngineCore:
    return make_core(worker=WORKER, max_loras=1)


def call(core: EngineCore, name: str, *args: Any, **kwargs: Any) -> UtilityResult:
    utilities = EngineUtilities(core, NO_PORTS)
    prefix = "adapters" if "lora" in name else "operations"
    return answer(utilities, UtilityCall(7, f"{prefix}.{name}", list(args), kwargs))


def result(core: EngineCore, name: str, *args: Any, **kwargs: Any) -> Any:
    answered = call(core, name, *args, **kwargs)
    assert answered.failure is None, answered.failure
    return answered.result


def methods() -> dict[str, Any]:
    found = EngineUtilities(make_core(), NO_PORTS).methods
    return {name: method for name, method in found.items() if "." in name}


def test_the_allow_list():
    """Q10."""
    assert set(methods()) == {
        *(f"adapters.{name}_lora" for name in ("add", "pin", "remove")),
        "adapters.list_loras",
        "operations.check_update",
        "operations.execute_dummy_batch",
        "operations.hold",
        "operations.is_held",
        "operations.is_sleeping",
        "operations.is_stepping",
        "operations.release",
        "operations.save_sharded_state",
        "operations.sleep",
        "operations.start_profile",
        "operations.stop_profile",
        "operations.update_weights",
        "operations.wake_up",
    }


def test_every_method_has_annotations():
    """IO-10 rests on them."""
    for name, method in methods().items():
        parameters = inspect.signature(method).parameters.values()
        assert all(p.annotation is not p.empty for p in parameters), name


def test_missing_arguments_are_rejected():
    assert (
        call(make_core(), "add_lora", "a").failure
        == "TypeError: add_lora: missing a required argument: 'path'; it takes name, path"
    )


class TestCapabilities:
    """EC-13: what the worker declares works; anything else says so, and changes nothing."""

    def test_declared_ones_reach_the_worker(self, core):
        CALLS.clear()
        assert result(core, "is_sleeping") is False
        result(core, "sleep", 2)
        assert result(core, "is_sleeping") is True
        result(core, "wake_up", ["weights"])
        assert result(core, "is_sleeping") is False
        assert result(core, "add_lora", "a", "/a") is True
        assert result(core, "list_loras") == ["a"]
        assert result(core, "pin_lora", "a") is True
        assert result(core, "remove_lora", "a") is True
        result(core, "start_profile")
        assert core.executor.worker.profiling
        result(core, "stop_profile")
        result(core, "save_sharded_state", "/p", "*.st", 5)
        result(core, "execute_dummy_batch")
        assert CALLS == ["save /p *.st 5", "dummy"]

    def test_a_format_of_a_workers_own_is_a_call_of_the_worker(self, core):
        """SV-1: `save_tensorized_model` goes to the workers as any method that they list in `rpc_methods`."""
        CALLS.clear()
        utilities = EngineUtilities(core, NO_PORTS)
        words = {"kwargs": {"tensorizer_config": {"tensorizer_uri": "/t"}}}
        called = UtilityCall(7, "call_workers", ["save_tensorized_model"], words)
        assert answer(utilities, called).failure is None
        assert CALLS == ["tensorize {'tensorizer_uri': '/t'}"]
        lacking = answer(EngineUtilities(make_core(), NO_PORTS), called)
        assert "worker method 'save_tensorized_model' is not allowed" in str(lacking.failure)

    def test_who_goes_to_sleep_forgets_cached_blocks_first(self, core, monkeypatch):
        """K/V of cached blocks may be gone when the engine wakes up."""
        order: list[str] = []
        monkeypatch.setattr(
            core.scheduler,
            "reset_prefix_cache",
            lambda running: not order.append(f"reset {running}"),
        )
        monkeypatch.setattr(
            core.executor.worker, "sleep", lambda level: order.append(f"sleep {level}")
        )
        result(core, "sleep", 2)
        assert order == ["reset True", "sleep 2"]

    @pytest.mark.parametrize(
        ("method", "args"),
        [("sleep", [1]), ("wake_up", []), ("add_lora", ["a", "/a"]), ("remove_lora", ["a"]), ("list_loras", []),
         ("pin_lora", ["a"]), ("save_sharded_state", ["/p"]),
        ],
    )  # fmt: skip
    def test_others_say_what_the_worker_declares(self, method, args, monkeypatch):
        core = make_core()
        reset = []
        monkeypatch.setattr(core.scheduler, "reset_prefix_cache", lambda *_: reset.append(1))
        answered = call(core, method, *args)
        assert answered.failure == (
            f"Unsupported: worker 'tenonry_testkit.fakes:FakeWorker' does not support '{method}'; "
            "it declares ['dummy_batch', 'kv_connector', 'profile', 'rounds']"
        )
        assert reset == []

    def test_a_worker_that_cannot_sleep_does_not(self):
        assert result(make_core(), "is_sleeping") is False
