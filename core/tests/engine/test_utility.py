"""Calls by name: an allow-list, converted arguments, an engine that survives (IO-9, IO-10, EC-13, EC-14, Q9, Q10)."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import msgspec
import pytest

from tenonry.engine.core import EngineCore
from tenonry.engine.utility import EngineUtilities, answer
from tenonry.errors import PluginError
from tenonry.interfaces.call_set import CallSet
from tenonry.messages import UtilityCall, UtilityResult
from tenonry_testkit.kernel.engine import Inbox, expected, make_core, request

WORKER = {"name": "tenonry_testkit.kernel.faulty:FaultyWorker", "options": {}}
DEEP = {"name": "tenonry_testkit.fakes:InstantExecutor", "options": {"depth": 2, "late": True}}


NO_PORTS: Any = None  # no client is attached here


def call(core: EngineCore, name: str, *args: Any, **kwargs: Any) -> UtilityResult:
    return answer(EngineUtilities(core, NO_PORTS), UtilityCall(7, name, list(args), kwargs))


def result(core: EngineCore, name: str, *args: Any, **kwargs: Any) -> Any:
    answered = call(core, name, *args, **kwargs)
    assert answered.failure is None, answered.failure
    return answered.result


@pytest.fixture
def core() -> EngineCore:
    return make_core(worker=WORKER, executor=DEEP, max_loras=1)


class TestAllowList:
    """Q10."""

    def test_it_is_what_it_is(self):
        assert set(EngineUtilities(make_core(call_sets=[]), NO_PORTS).methods) == {
            "attach_client",
            "check_health",
            "call_workers",
            "detach_client",
            "request_counts",
            "reset_mm_cache",
            "reset_prefix_cache",
            "take_place",
        }

    @pytest.mark.parametrize(
        "name",
        ["__init__", "__class__", "_core", "_call", "_require", "_capabilities", "__getattribute__", "shutdown",
         "step", "", "check_health.__call__", "check_health "],
    )  # fmt: skip
    def test_no_other_attribute_can_be_called(self, core, name):
        answered = call(core, name)
        assert answered.result is None
        assert answered.failure is not None
        assert f"Unsupported: '{name}' is not a method of the engine; it has [" in answered.failure

    def test_the_answer_carries_the_calls_number(self, core):
        assert call(core, "check_health") == UtilityResult(7, True, None)


class TestArguments:
    """IO-10."""

    def test_more_than_there_are_parameters_are_refused(self, core):
        assert (
            call(core, "check_health", 1).failure
            == "TypeError: check_health: too many positional arguments; it takes no arguments"
        )
        assert (
            "reset_prefix_cache: too many positional arguments; "
            "it takes reset_running_requests, reset_connector"
        ) in str(call(core, "reset_prefix_cache", True, True, True).failure)

    def test_missing_arguments_are_refused(self, core):
        assert (
            call(core, "take_place", 1).failure
            == "TypeError: take_place: missing a required argument: 'epoch'; it takes index, epoch"
        )

    def test_arguments_may_be_given_by_name(self, core):
        assert result(core, "reset_prefix_cache", reset_running_requests=True) is True
        assert result(core, "call_workers", "profile", kwargs={"is_start": False}) == [False]
        assert result(core, "call_workers", method="profile", args=[True]) == [True]

    @pytest.mark.parametrize(
        ("method", "args", "kwargs", "text"),
        [
            (
                "check_health",
                [],
                {"x": 1},
                "check_health: got an unexpected keyword argument 'x'; it takes no arguments",
            ),
            (
                "call_workers",
                ["nap"],
                {},
                "nap: missing a required argument: 'seconds'; it takes seconds",
            ),
            (
                "call_workers",
                ["profile"],
                {"kwargs": {"is_stop": True}},
                "profile: got an unexpected keyword argument 'is_stop'; it takes is_start",
            ),
            (
                "call_workers",
                ["profile", [True]],
                {"kwargs": {"is_start": True}},
                "profile: multiple values for argument 'is_start'; it takes is_start",
            ),
        ],
    )
    def test_names_that_a_method_does_not_take_are_refused(self, core, method, args, kwargs, text):
        assert call(core, method, *args, **kwargs).failure == f"TypeError: {text}"

    def test_structs_are_converted(self, core, monkeypatch):
        class Point(msgspec.Struct):
            x: int

        def takes(self: Any, point: Point, other: int = 0) -> int:
            assert isinstance(point, Point)
            return point.x + other

        takes.__annotations__ = {"point": Point, "other": int, "return": int}
        monkeypatch.setattr(EngineUtilities, "check_health", takes)
        assert result(core, "check_health", {"x": 3}, 4) == 7
        assert result(core, "check_health", Point(3)) == 3
        assert "Expected `int`, got `str`" in str(call(core, "check_health", {"x": "3"}).failure)


class TestFailures:
    """IO-9, Q9: the caller gets a text; the engine continues; exceptions that must stop the process do so."""

    def test_an_exception_becomes_a_text(self, core):
        assert call(core, "call_workers", "raises").failure == "ValueError: worker says no"
        core.add_request(request(1))
        assert Inbox().run(core).tokens[1] == expected(core, request(1))

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
    def test_a_signals_exception_passes(self, core, monkeypatch, error):
        def interrupted(self: Any) -> None:
            raise error

        monkeypatch.setattr(EngineUtilities, "check_health", interrupted)
        with pytest.raises(error):
            call(core, "check_health")

    @pytest.mark.parametrize(
        ("method", "text"),
        [
            ("unknown_type", "TypeError: object cannot be sent"),
            ("nothing_of_the_kind", "Unsupported: "),
        ],
    )
    def test_what_cannot_be_sent_or_called_is_a_text(self, core, method, text):
        assert str(call(core, "call_workers", method).failure).startswith(text)

    @pytest.mark.parametrize("method", ["too_large", "lone_surrogate"])
    def test_what_only_the_wire_refuses_is_a_text_too(self, core, method):
        answered = call(core, "call_workers", method)
        assert answered.failure is not None
        assert msgspec.msgpack.encode(answered)

    def test_results_are_plain(self, core):
        assert result(core, "call_workers", "data") == [
            {"array": [0, 1, 2], "bytes": b"\x00", "number": 0.5}
        ]


class TestMethods:
    def test_caches_are_reset_after_the_steps_in_flight(self, core):
        """EC-14: and no token of them is lost."""
        source = request(1, max_tokens=6)
        core.add_request(source)
        core.step()
        assert len(core.in_flight) == 1
        result(core, "reset_prefix_cache", True)
        assert len(core.in_flight) == 0
        assert Inbox().run(core).tokens[1] == expected(core, source)

    def test_a_cache_in_use_is_not_reset(self, core):
        core.add_request(request(1, max_tokens=6))
        core.step()
        assert result(core, "reset_prefix_cache") is False
        Inbox().run(core)
        assert result(core, "reset_prefix_cache") is True

    def test_the_connector_is_reset_on_demand(self):
        core = make_core(kv_connector="tenonry_testkit.kernel.faulty:FaultyConnector")
        asked = []
        core.kv_connector.reset = lambda: bool(asked.append(1))  # type: ignore[union-attr,method-assign]
        assert result(core, "reset_prefix_cache") is True
        assert result(core, "reset_prefix_cache", False, True) is False
        assert asked == [1]

    def test_simple_facts(self, core):
        core.add_request(request(1))
        assert result(core, "request_counts") == (0, 1)
        assert result(core, "check_health") is True

    @pytest.mark.parametrize("max_images", [0, 2])
    def test_workers_that_see_forget_images(self, max_images):
        core = make_core(
            max_images=max_images, worker="tenonry_testkit.kernel.faulty:CountingWorker"
        )
        asked: list[str] = []
        core.executor.call = lambda method, *_, **__: asked.append(method) or []  # type: ignore[assignment,method-assign,func-returns-value]
        assert result(core, "reset_mm_cache") is None
        assert asked == ["reset_mm_cache"] * bool(max_images)

    def test_forgetting_images_of_running_requests_is_warned_of(self, core, caplog):
        """EC-14."""
        assert result(core, "reset_mm_cache") is None
        assert caplog.text == ""
        core.add_request(request(1))
        assert result(core, "reset_mm_cache") is None
        assert "reset_mm_cache during requests" in caplog.text

    def test_ill_health_is_a_failure(self):
        core = make_core(
            executor={
                "name": "tenonry_testkit.kernel.faulty:FaultyExecutor",
                "options": {"fail": "check_health"},
            }
        )
        assert call(core, "check_health").failure == "RuntimeError: check_health failed on purpose"

    def test_workers_answer_with_no_step_in_flight(self, core):
        """EC-13: one result per rank."""
        source = request(1)
        core.add_request(source)
        core.step()
        assert result(core, "call_workers", "echo", ["x"], 5.0) == [[0, "x"]]
        assert len(core.in_flight) == 0
        assert Inbox().run(core).tokens[1] == expected(core, source)


class Counters(CallSet):
    """A call set of somebody else."""

    name = "counters"

    class Half:
        def __init__(self, engine: Any) -> None:
            self._engine = engine

        def total(self, *numbers: int, start: int = 0) -> int:
            return sum(numbers, start + self._engine.index)

        def _hidden(self) -> None: ...

    def engine_half(self, engine: Any) -> Half:
        return self.Half(engine)


class TestCallSets:
    """Their methods are added to the allow-list, each under its set's name."""

    TARGET = f"{__name__}:Counters"

    @pytest.fixture(autouse=True)
    def _importable(self, monkeypatch):
        monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])

    def test_public_methods_can_be_called(self):
        core = make_core(index=3, call_sets=[self.TARGET])
        assert result(core, "counters.total", 1, 2) == 6
        assert result(core, "counters.total", 1, start=5) == 9
        for name in ("total", "counters._hidden", "counters.__init__", "counters.", "counters"):
            assert "is not a method of the engine" in str(call(core, name).failure)

    def test_two_of_one_name_are_refused(self):
        core = make_core(call_sets=[self.TARGET, self.TARGET])
        with pytest.raises(PluginError, match="two call sets are called 'counters'"):
            EngineUtilities(core, NO_PORTS)


def test_every_method_has_annotations():
    """IO-10 rests on them."""
    for name, method in EngineUtilities(make_core(call_sets=[]), NO_PORTS).methods.items():
        parameters = inspect.signature(method).parameters.values()
        assert all(p.annotation is not p.empty for p in parameters), name
