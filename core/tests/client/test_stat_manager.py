"""Stat loggers on threads of their own: never in the way, quarantined after three errors (SL-1, AF-2, fault 24)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tenonry.client import stat_manager
from tenonry.client.stat_manager import ERRORS_BEFORE_QUARANTINE, MAX_CALL_S, Observer, StatManager
from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import PluginFault
from tenonry.info import EngineInfo, PluginRecord
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.plugin.manager import PluginManager
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry.stats import StatRecord
from tenonry_testkit.fakes import RecordingStatLogger
from tenonry_testkit.roles import eventually

CONFIG = EngineConfig(model="m")
CONTEXT = StatLoggerContext(CONFIG)
INFO = EngineInfo(
    model="m", served_model_name="m", max_model_len=8, num_gpu_blocks=1, block_size=16
)


class ActingStatLogger(RecordingStatLogger):
    """Runs an action of the test in `record`."""

    def __init__(self, act: Any = None) -> None:
        super().__init__(CONTEXT)
        self.act = act

    def record(self, record: StatRecord) -> None:
        self.calls.append("record")
        if self.act is not None:
            self.act(record)
        self.records.append(record)


class PageStatLogger(ActingStatLogger):
    """Renders a page."""

    def render(self) -> tuple[bytes, str]:
        return b"x", "text"


class Tracer(RecordingStatLogger):
    traces = True


def fails(_: Any) -> None:
    raise ValueError("on purpose")


def record(number: int = 0) -> StatRecord:
    return StatRecord(engine_index=number, time=0.0)


@pytest.fixture
def manage() -> Iterator[Any]:
    made: list[StatManager] = []

    def start(**loggers: StatLogger) -> StatManager:
        made.append(StatManager(CONFIG, PluginPlan(), loggers))
        made[-1].initialized(INFO)
        return made[-1]

    yield start
    for manager in made:
        manager.shutdown()


class TestDelivery:
    def test_everything_in_order_from_one_thread(self, manage):
        threads = set()
        observer = ActingStatLogger(lambda _: threads.add(threading.current_thread()))
        manager = manage(observer=observer)
        for i in range(100):
            manager.record(record(i))
        manager.shutdown()
        assert [each.engine_index for each in observer.records] == list(range(100))
        assert observer.calls == ["log_engine_initialized", *["record"] * 100, "log", "shutdown"]
        assert len(threads) == 1
        assert threading.main_thread() not in threads

    def test_each_logger_gets_each_record(self, manage):
        one, two = ActingStatLogger(), ActingStatLogger()
        manager = manage(one=one, two=two)
        manager.record(record())
        manager.shutdown()
        assert len(one.records) == len(two.records) == 1
        assert manager.loggers == {"one": one, "two": two}

    def test_other_events_reach_them(self, manage):
        observer = ActingStatLogger()
        manager = manage(observer=observer)
        manager.submit("record_sleep_state", True, 2)
        manager.submit("record_rejection", "queue_full")
        manager.initialized(INFO)
        manager.shutdown()
        assert observer.sleeps == [(True, 2)]
        assert observer.rejections == ["queue_full"]
        assert observer.infos == [INFO, INFO]

    def test_it_knows_whether_one_of_them_traces(self, manage):
        """AF-22."""
        silent = RecordingStatLogger(CONTEXT)
        assert [manage().traces, manage(a=silent).traces, manage(a=silent, b=Tracer(CONTEXT)).traces] == [
            False, False, True,
        ]  # fmt: skip

    def test_without_loggers_there_is_no_thread(self, manage):
        before = set(threading.enumerate())
        manager = manage()
        manager.record(record())
        assert set(threading.enumerate()) <= before
        assert not manager.enabled

    def test_log_is_called_every_interval(self, manage):
        often, seldom = ActingStatLogger(), ActingStatLogger()
        often.interval_s, seldom.interval_s = 0.02, 1000
        manage(often=often, seldom=seldom)
        eventually(lambda: often.calls.count("log") >= 3)
        assert "log" not in seldom.calls

    @pytest.mark.parametrize("interval", [0, -5, float("nan"), float("inf"), "x", None])
    def test_an_impossible_interval_stops_no_logger(self, manage, interval):
        bad, good = ActingStatLogger(), ActingStatLogger()
        bad.interval_s = interval  # type: ignore[assignment]
        manager = manage(bad=bad, good=good)
        for i in range(3):
            manager.record(record(i))
        eventually(lambda: len(good.records) == 3)


class TestRender:
    def test_after_waits_for_what_was_submitted_before(self, manage):
        go = threading.Event()
        observer = PageStatLogger(lambda _: go.wait(10))
        manager = manage(observer=observer)
        seen: list[int] = []
        manager.record(record())
        manager.after(lambda: seen.append(len(observer.records)))
        assert seen == []
        go.set()
        eventually(lambda: seen == [1])

    def test_after_waits_for_no_logger_without_a_page(self, manage):
        """A slow file or network delays no request for metrics."""
        go = threading.Event()
        page = PageStatLogger()
        manager = manage(slow=ActingStatLogger(lambda _: go.wait(30)), page=page)
        manager.record(record())
        seen = threading.Event()
        manager.after(seen.set)
        in_time = seen.wait(10)
        go.set()
        assert in_time
        assert len(page.records) == 1

    def test_after_is_immediate_without_a_thread(self):
        seen: list[bool] = []
        StatManager(CONFIG, PluginPlan()).after(lambda: seen.append(True))
        assert seen == [True]

    def test_the_first_logger_that_can_renders(self, manage):
        plain, able = ActingStatLogger(), PageStatLogger()
        assert asyncio.run(manage(plain=plain).render()) is None
        assert asyncio.run(manage(plain=plain, able=able).render()) == (b"x", "text")


class TestQuarantine:
    """Fault 24."""

    def test_after_three_errors_in_a_row_it_is_named_and_called_no_more(self, manage, caplog):
        bad, good = ActingStatLogger(fails), ActingStatLogger()
        manager = manage(bad=bad, good=good)
        for i in range(6):
            manager.record(record(i))
        eventually(lambda: len(good.records) == 6)
        manager.shutdown()
        assert bad.calls == ["log_engine_initialized", *["record"] * ERRORS_BEFORE_QUARANTINE]
        assert good.calls[-1] == "shutdown"
        assert caplog.text.count("failed in record: ValueError: on purpose") == 3
        assert "stat logger 'bad' (" in caplog.text
        assert "is quarantined after 3 errors in a row" in caplog.text

    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
    def test_what_ends_threads_counts_as_an_error(self, manage, caplog, error):
        def ends(_: Any) -> None:
            raise error

        bad = ActingStatLogger(ends)
        manager = manage(bad=bad)
        for i in range(6):
            manager.record(record(i))
        manager.shutdown()
        assert bad.calls.count("record") == ERRORS_BEFORE_QUARANTINE
        assert f"failed in record: {type(error).__name__}" in caplog.text

    def test_a_success_in_between_counts_anew(self, manage, caplog):
        observer = ActingStatLogger(lambda each: fails(each) if each.engine_index % 3 else None)
        manager = manage(observer=observer)
        for i in range(1, 30):
            manager.record(record(i))
        manager.shutdown()
        assert len(observer.records) == 9
        assert "quarantined" not in caplog.text

    def test_every_kind_of_call_counts(self, manage, caplog):
        observer = ActingStatLogger()
        observer.record_rejection = fails  # type: ignore[method-assign]
        manager = manage(observer=observer)
        for _ in range(4):
            manager.submit("record_rejection", "invalid")
        eventually(
            lambda: (
                "stat logger 'observer' (" in caplog.text
                and "is quarantined after 3" in caplog.text
            )
        )


class TestSlowLoggers:
    def test_records_are_dropped_and_counted_without_a_wait(self, monkeypatch, caplog):
        monkeypatch.setattr(stat_manager, "QUEUE_SIZE", 5)
        go = threading.Event()
        slow = ActingStatLogger(lambda _: go.wait(10))
        observer = Observer(PluginRecord("stat_logger", "slow", "m:Slow"), slow)
        observer.start()
        observer.submit("record", record())
        eventually(lambda: slow.calls[-1:] == ["record"])
        for i in range(20):
            observer.submit("record", record(i))
        assert observer.dropped == 15
        assert caplog.text.count("stat logger 'slow' (") == 1
        assert "is too slow; records were dropped" in caplog.text
        go.set()
        observer.stop()
        assert observer.thread is not None
        observer.thread.join(10)
        assert len(slow.records) == 6
        assert slow.calls[-2:] == ["log", "shutdown"]

    def test_one_that_hangs_does_not_keep_a_shutdown(self, manage, monkeypatch):
        go = threading.Event()
        manager = manage(hanging=ActingStatLogger(lambda _: go.wait(10)))
        manager.record(record())
        manager.shutdown(timeout=0.1)
        manager.shutdown(timeout=0.1)
        go.set()


class TestHangingLoggers:
    """One that blocks is named and skipped; the others receive everything immediately, also while no request comes."""

    @pytest.fixture
    def hang(self, monkeypatch) -> Iterator[Any]:
        monkeypatch.setattr(stat_manager, "TICK_S", 0.01)
        go = threading.Event()

        def wait(_: Any) -> None:
            assert go.wait(30)

        wait.go = go  # type: ignore[attr-defined]
        yield wait
        go.set()

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_the_others_do_not_wait_for_it(self, place, manage, hang, monkeypatch):
        monkeypatch.setattr(stat_manager, "TICK_S", 1000)
        loggers = {name: ActingStatLogger() for name in "abc"}
        hanging = loggers["abc"[place]]
        hanging.act = hang
        manager = manage(**loggers)
        for i in range(3):
            manager.record(record(i))
        others = [logger for logger in loggers.values() if logger is not hanging]
        eventually(lambda: all(len(logger.records) == 3 for logger in others))
        assert hanging.records == []

    def test_it_is_named_while_nothing_is_recorded(self, manage, hang, caplog):
        hanging, good = ActingStatLogger(hang), ActingStatLogger()
        manager = manage(hanging=hanging, good=good)
        manager.record(record())
        eventually(lambda: "quarantined" in caplog.text)
        assert "stat logger 'hanging' (" in caplog.text
        assert "is quarantined after 10 s in 'record', which has not returned" in caplog.text
        hang.go.set()  # what it waited for comes at last: too late
        manager.record(record(7))
        manager.shutdown()
        assert good.calls[-2:] == ["log", "shutdown"]
        eventually(lambda: len(hanging.records) == 1)
        assert hanging.calls == ["log_engine_initialized", "record"]

    def test_what_waits_for_it_goes_on_without_it(self, manage, hang, caplog):
        """A request for metrics, for example."""
        manager = manage(hanging=PageStatLogger(hang), good=ActingStatLogger())
        manager.record(record())
        seen = threading.Event()
        manager.after(seen.set)
        assert seen.wait(10)
        assert "quarantined" in caplog.text

    def test_one_that_hangs_in_its_log_is_left_there(self, manage, hang, caplog):
        bad, good = ActingStatLogger(), ActingStatLogger()
        bad.interval_s = 0.01
        bad.log = lambda: hang(None)  # type: ignore[method-assign]
        manage(bad=bad, good=good)
        eventually(lambda: "after 10 s in 'log'" in caplog.text)
        assert "log" not in good.calls

    def test_a_slow_one_that_goes_on_is_not(self, caplog):
        """Seconds count from the beginning of each call. Those in which nothing is called, or the process was
        suspended, do not.
        """
        slow = ActingStatLogger()
        observer = Observer(PluginRecord("stat_logger", "slow", "m:Slow"), slow)
        slow.act = lambda _: [observer.tick() for _ in range(MAX_CALL_S - 1)]
        for number in range(3):
            observer.call("record", record(number))
            for _ in range(2 * MAX_CALL_S):
                observer.tick()
        assert len(slow.records) == 3
        assert caplog.text == ""


class TestPlan:
    def plan(self, **options: Any) -> PluginPlan:
        config = EngineConfig(
            model="m",
            stat_loggers=(
                {"name": "tenonry_testkit.fakes:RecordingStatLogger", "options": options},
            ),
        )
        return PluginPlan(
            tuple(
                PluginManager(discover=False).resolve("stat_logger", choice, config)
                for choice in config.stat_loggers
            )
        )

    def test_loggers_of_the_plan_are_built_with_their_options(self):
        manager = StatManager(CONFIG, self.plan(fail_records=1))
        (observer,) = manager.loggers.values()
        assert isinstance(observer, RecordingStatLogger)
        assert observer.context.plugin_name == "tenonry_testkit.fakes:RecordingStatLogger"
        assert observer.context.config is CONFIG
        manager.initialized(INFO)
        for _ in range(2):
            manager.record(record())
        manager.shutdown()
        assert len(observer.records) == 1

    def test_one_that_cannot_be_built_stops_the_start_by_name(self, site):
        """And closes the resources of those before it."""
        site.install("acme", version="3", modules={"acme_bad.py": (
            "from tenonry.interfaces.stat_logger import StatLogger\n"
            "class Good(StatLogger):\n"
            "    calls = []\n"
            "    def record(self, record):\n        pass\n"
            "    def shutdown(self):\n        self.calls.append('shutdown')\n"
            "class Bad(Good):\n"
            "    def __init__(self, context):\n        raise OSError('no disk')\n"
        )})  # fmt: skip
        manager = PluginManager(discover=False)
        good, bad = (
            manager.resolve("stat_logger", PluginChoice(name=f"acme_bad:{name}"), CONFIG)
            for name in ("Good", "Bad")
        )
        with pytest.raises(
            PluginFault,
            match=r"plugin acme_bad:Bad \(acme 3\) failed in its constructor: OSError: no disk",
        ):
            StatManager(CONFIG, PluginPlan((good, bad)))
        assert vars(load_class(good))["calls"] == ["shutdown"]


def test_a_shutdown_before_the_start_closes_what_loggers_hold_already():
    before = set(threading.enumerate())
    observer = ActingStatLogger()
    manager = StatManager(CONFIG, PluginPlan(), {"x": observer})
    for _ in range(2):
        manager.shutdown()
        manager.initialized(INFO)  # engines that became ready while everything ended
        manager.record(record())
    assert observer.calls == ["shutdown"]
    assert set(threading.enumerate()) <= before


def test_a_logger_is_not_logged_at_every_record(manage, caplog):
    with caplog.at_level(logging.DEBUG):
        manager = manage(observer=ActingStatLogger())
        manager.record(record())
        manager.shutdown()
    assert caplog.text == ""
