"""A profile of an event loop: a Chrome trace of what ran in its thread, on torch's clock, and only of that."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from tenonry.errors import ConfigError
from tenonry_scale_out.profile import LoopProfile, Recording, profile_front_end, trace


def busy(seconds=0.002):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def outer():
    busy()
    with contextlib.suppress(ZeroDivisionError):
        failing()
    busy()


def failing():
    busy()
    raise ZeroDivisionError


def events_of(recording):
    events = json.loads("".join(trace(recording, "front-end")))["traceEvents"]
    return [each for each in events if each["ph"] == "X"]


def recorded(work, **options):
    recording = Recording(**options)
    recording.start()
    try:
        work()
    finally:
        recording.stop()
    assert sys.getprofile() is None
    return recording


def named(events, name):
    return [each for each in events if each["name"] == name]


def test_calls_lie_within_their_callers_also_after_exceptions():
    events = events_of(recorded(outer))
    (whole,) = named(events, "outer")
    (failed,) = named(events, "failing")
    inner = named(events, "busy")
    assert len(inner) == 3
    for each in (*inner, failed):
        assert whole["ts"] <= each["ts"]
        assert each["ts"] + each["dur"] <= whole["ts"] + whole["dur"] + 0.01
    assert 2000 <= failed["dur"] < whole["dur"]
    assert whole["args"]["source"].startswith(__file__)


def test_coroutines_are_there_each_time_that_they_run():
    async def one():
        for _ in range(3):
            busy()
            await asyncio.sleep(0)

    async def both():
        recording = Recording()
        recording.start()
        await asyncio.gather(one(), one())
        recording.stop()
        return recording

    events = events_of(asyncio.run(both()))
    runs = sorted((run["ts"], run["ts"] + run["dur"]) for run in named(events, one.__qualname__))
    for (_, end), (start, _) in itertools.pairwise(runs):
        assert end <= start + 0.01  # they take turns
    calls = sorted(call["ts"] for call in named(events, "busy"))
    ran_in = [
        index for call in calls for index, (start, end) in enumerate(runs) if start <= call <= end
    ]
    assert len(ran_in) == len(set(ran_in)) == 6  # a last, short run of each may be there


def test_other_threads_and_short_calls_are_left_out():
    started, done = threading.Event(), threading.Event()

    def elsewhere():
        started.wait(10)
        busy()
        done.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()

    def work():
        started.set()
        done.wait(10)
        for _ in range(1000):
            json.loads("1")

    events = events_of(recorded(work, least_ns=1_000_000))
    thread.join()
    assert not named(events, "busy")
    assert len(named(events, work.__qualname__)) == 1
    assert len(named(events, "loads")) < 500  # some are interrupted, and last


def test_functions_that_began_before_end_before_the_recording_does():
    recording = Recording()

    def begin():
        recording.start()
        busy()

    begin()
    outer()
    recording.stop()
    assert len(named(events_of(recording), "outer")) == 1


def test_a_full_recording_ends_and_says_so(tmp_path, caplog):
    recording = recorded(lambda: [outer() for _ in range(4)], most=5)
    assert recording.is_full
    assert len(recording.calls) == 5
    caplog.set_level("INFO", "tenonry.scale_out")
    path = LoopProfile(str(tmp_path)).write(recording)
    whole = json.loads(path.read_text())["traceEvents"][-1]
    assert whole["args"] == {"complete": False}
    assert "ends early, at 5 calls" in caplog.text


class Engines:
    """Answers as engines do. `refuses`: whether they have no profiles."""

    def __init__(self, *, refuses=False):
        self.asked = []
        self.refuses = refuses

    async def call(self, method, *args):
        self.asked.append((method, *args))
        if self.refuses:
            raise RuntimeError("no profiles")
        return [None]

    change = call

    async def call_engine(self, index, method, *args):
        return await self.call(method, index, *args)


def front_end(folder, engines, **options):
    engine = SimpleNamespace(calls={"operations": SimpleNamespace(engines=engines)})
    profile_front_end(engine, LoopProfile(str(folder), **options))
    return engine.calls["operations"].engines


@pytest.mark.parametrize("compress", [False, True])
def test_a_profile_of_the_engines_is_one_of_the_front_end(tmp_path, compress):
    engines = Engines()
    folder = tmp_path / "new" / "traces"
    calls = front_end(folder, engines, compress=compress, process="api-server 0")

    async def profiled():
        for _ in range(2):
            await calls.call("start_profile")
            with pytest.raises(ConfigError, match="a profile runs already"):
                await calls.call("start_profile")
            outer()
            await calls.call("stop_profile")
        await calls.change("sleep", 1)
        await calls.call_engine(2, "hold")

    asyncio.run(profiled())
    assert engines.asked == [("start_profile",), ("stop_profile",)] * 2 + [
        ("sleep", 1),
        ("hold", 2),
    ]
    names = sorted(path.name for path in folder.iterdir())
    suffix = "json.gz" if compress else "json"
    assert [name.partition(".api-server 0.")[2] for name in names] == [
        f"0.trace.{suffix}",
        f"1.trace.{suffix}",
    ]
    data = (folder / names[1]).read_bytes()
    found = json.loads(gzip.decompress(data) if compress else data)
    assert len(named(found["traceEvents"], "outer")) == 1
    labels = {each["name"]: each["args"] for each in found["traceEvents"] if each["ph"] == "M"}
    assert labels["process_name"] == {"name": "api-server 0"}
    assert labels["recording"] == {"complete": True}
    (event,) = named(found["traceEvents"], "outer")
    clock = found["baseTimeNanoseconds"] / 1e9 + event["ts"] / 1e6
    assert abs(time.time() - clock) < 60


def test_engines_that_refuse_a_profile_leave_none_here(tmp_path):
    calls = front_end(tmp_path, Engines(refuses=True))

    async def refused():
        with pytest.raises(RuntimeError, match="no profiles"):
            await calls.call("start_profile")
        assert sys.getprofile() is None
        with pytest.raises(RuntimeError, match="no profiles"):
            await calls.call("stop_profile")

    asyncio.run(refused())
    assert not list(tmp_path.iterdir())


def test_another_profiler_and_a_bad_folder_are_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="no folder for profiles at"):
        LoopProfile(str(tmp_path / "file")).start()
    sys.setprofile(lambda *_: None)
    try:
        with pytest.raises(ConfigError, match="another profiler watches the thread MainThread"):
            LoopProfile(str(tmp_path)).start()
    finally:
        sys.setprofile(None)


@pytest.mark.integration
def test_a_process_that_ends_writes_what_it_has(tmp_path):
    code = (
        "import sys, time\nfrom tenonry_scale_out.profile import LoopProfile\n"
        "def work():\n    time.sleep(0.01)\n"
        "LoopProfile(sys.argv[1]).start()\nwork()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    (path,) = tmp_path.iterdir()
    assert len(named(json.loads(path.read_text())["traceEvents"], "work")) == 1
