"""Ranks that fail, die, hang or are called too late (WK-3, 7, 8, 9, 10; Q6, Q7, Q8): real processes, real signals."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tenonry.errors import ConfigError, EngineDeadError, LaunchError, ModelError, Unsupported
from tenonry.launch import supervise
from tenonry.step import SchedulerOutput
from tenonry_executor_multiproc import executor as executor_module
from tenonry_testkit.roles import eventually

pytestmark = pytest.mark.integration

forked = pytest.mark.usefixtures("forked_children")
HANG, FAIL = 9, 8


def gone(pids, within=20.0):
    """Return True if the processes end in time."""
    deadline = time.monotonic() + within
    while any(psutil.pid_exists(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def closed(before):
    """Threads that watched the ranks close their ends of pipes a moment after the ranks have ended."""
    eventually(lambda: open_files() == before)


def run_steps(executor, steps):
    for step in steps:
        executor.execute_model(step).result(10)


# ---------------------------------------------------------------------------------------------------------- start
@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("build", ConfigError, r"worker 0\.1: this worker cannot be had"),
        ("error", LaunchError, r"worker 0\.1: FileNotFoundError: model-00007"),
        ("kill", LaunchError, r"worker 0\.1 \(pid \d+\) ended: signal SIGKILL"),
        ("exit", LaunchError, r"worker 0\.1 \(pid \d+\) ended: exit code 3"),
    ],
)
def test_a_start_that_fails_in_one_rank_says_what_it_said(build, fault, kind, text):
    """WK-10: while the other rank waits for it."""
    built = build({"fault": fault})
    with pytest.raises(kind, match=text):
        built.executor.start()
    built.executor.shutdown()
    assert built.reasons == []  # `start` raised


@forked
def test_a_model_error_stays_one_and_is_not_traced(build, capfd):
    built = build({"fail_load": "layer 3 is missing"}, tensor_parallel_size=1)
    with pytest.raises(ModelError, match=r"worker 0\.0: layer 3 is missing"):
        built.executor.start()
    built.executor.shutdown()
    parts = []

    def log() -> str:
        parts.append(capfd.readouterr().err)
        return "".join(parts)

    eventually(lambda: "load failed" in log())
    assert "Traceback" not in log()


@forked
def test_a_start_has_a_deadline_and_names_who_is_late(build):
    built = build({"fault": "sleep"}, start_timeout=4.0)
    with pytest.raises(
        LaunchError,
        match=r"load was not answered within .* by worker 0\.1 \(pid \d+, .*start-timeout",
    ):
        built.executor.start()


def test_no_file_descriptors_is_said(build):
    """Reliability, fault 29."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = open_files()
    for room in (0, 3, 5, 8):
        built = build()
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + room, limits[1]))
            with pytest.raises(LaunchError, match="Too many open files"):
                built.executor.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        built.executor.shutdown()
        closed(used)


def test_no_shared_memory_is_said(build, monkeypatch):
    """Reliability, fault 29."""

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    used, built = open_files(), build()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        LaunchError, match=r"no shared memory for the steps of 2 ranks .*No space left"
    ):
        built.executor.start()
    built.executor.shutdown()
    closed(used)


# ---------------------------------------------------------------------------------------------------------- death
@forked
def test_a_rank_that_is_killed_in_a_step_ends_all(build, first_step, errors_logged):
    """WK-7, WK-8: pending results fail naming the dead rank, the others are killed, the engine is notified once."""
    built = build({"hang_token": HANG})
    executor = built.start()
    pids = built.pids
    future = executor.execute_model(first_step(1, HANG))
    waiting = executor.execute_model(SchedulerOutput(step_id=1))
    assert not future.done()
    os.kill(pids[1], signal.SIGKILL)
    dead = rf"worker 0\.1 \(pid {pids[1]}\) ended: signal SIGKILL"
    for attempt in (
        lambda: future.result(10),
        lambda: waiting.result(10),
        lambda: executor.call("echo", []),
        lambda: executor.execute_model(SchedulerOutput(step_id=2)),
        executor.check_health,
    ):
        with pytest.raises(EngineDeadError, match=dead):
            attempt()
    assert waiting.done()
    assert gone(pids)
    built.executor.shutdown()
    assert len(built.reasons) == 1
    assert sum("SIGKILL" in text for text in errors_logged()) == 1


@forked
def test_a_rank_that_ends_without_a_word_is_dead_too(build, first_step):
    """An exit code of 0 would be no excuse either."""
    built = build({"exit_token": 7})
    executor = built.start()
    with pytest.raises(EngineDeadError, match=r"worker 0\.[01] \(pid \d+\) ended: exit code 77"):
        executor.execute_model(first_step(7)).result(10)


@forked
def test_a_death_is_noticed_while_nobody_asks(build):
    built = build()
    built.start()
    os.kill(built.pids[0], signal.SIGKILL)
    eventually(lambda: built.reasons)
    assert "worker 0.0" in built.reasons[0]
    assert "signal SIGKILL" in built.reasons[0]


@forked
def test_a_rank_at_work_leaves_it_to_the_engine_when_to_end(build, first_step):
    """A signal to the whole group must not end the ranks while the engine finishes running steps."""
    built = build()
    executor = built.start()
    for pid in built.pids:
        os.kill(pid, signal.SIGTERM)
    assert len(executor.execute_model(first_step()).result(10).token_ids) == 1
    assert built.reasons == []


def test_no_rank_survives_the_engine(tmp_path):
    """Q6: SIGKILL of the engine's process, one rank stopped."""
    script = tmp_path / "engine.py"
    script.write_text(
        f"import sys, time; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from conftest import Built\n"
        "built = Built({}, {}); built.start(); print(*built.pids, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as engine:
        pids = [int(word) for word in engine.stdout.readline().split()]
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGSTOP)
        engine.kill()
    assert gone(pids)


# ---------------------------------------------------------------------------------------------------------- hanging
@forked
def test_a_stopped_driver_is_named_and_killed(build, first_step):
    """The step deadline (--step-timeout)."""
    built = build(step_timeout=0.5)
    executor = built.start()
    pids = built.pids
    os.kill(pids[0], signal.SIGSTOP)
    future = executor.execute_model(first_step())
    with pytest.raises(TimeoutError):
        future.result(0.05)
    with pytest.raises(
        EngineDeadError, match=rf"step 0 .* within 0\.5 s by worker 0\.0 \(pid {pids[0]}, stopped\)"
    ):
        future.result()
    assert gone(pids)
    assert len(built.reasons) == 1


@forked
def test_a_stopped_rank_that_only_listens_is_found_when_it_is_too_far_behind(build):
    built = build(step_timeout=1.5)
    executor = built.start()
    pids = built.pids
    os.kill(pids[1], signal.SIGSTOP)
    with pytest.raises(EngineDeadError, match=rf"worker 0\.1 \(pid {pids[1]}, stopped\)"):
        run_steps(executor, [SchedulerOutput(step_id=step_id) for step_id in range(50)])
    assert gone(pids)


@forked
def test_a_rank_that_stays_stopped_is_killed_while_the_engine_is_idle(build, monkeypatch):
    monkeypatch.setattr(supervise, "STOPPED_S", 2.0)
    built = build()
    built.start()
    pids = built.pids
    os.kill(pids[1], signal.SIGSTOP)
    eventually(lambda: built.reasons)
    assert built.reasons == [f"worker 0.1 (pid {pids[1]}) ended: signal SIGKILL"]
    assert gone(pids)


def test_a_call_that_takes_too_long_names_the_rank_and_hurts_nobody(healthy):
    with pytest.raises(
        TimeoutError, match=r"pause was not answered within 1 s by worker 0\.1 \(pid"
    ):
        healthy.call("pause", [1.5, 1], 1.0)
    assert healthy.call("echo", ["next"], 10) == [[0, "next"], [1, "next"]]


@forked
def test_the_health_check_has_a_deadline(build, monkeypatch):
    monkeypatch.setattr(executor_module, "RECENT_S", 0.0)
    built = build()
    executor = built.start()
    executor.check_health()
    monkeypatch.setattr(executor_module, "HEALTH_TIMEOUT_S", 0.3)
    os.kill(built.pids[1], signal.SIGSTOP)
    with pytest.raises(TimeoutError, match=r"check_health .*worker 0\.1 \(pid \d+, stopped\)"):
        executor.check_health()
    os.kill(built.pids[1], signal.SIGCONT)


@forked
def test_the_health_check_asks_no_rank_with_a_step_in_flight(build, first_step, monkeypatch):
    """It waits for nothing: a step that is young is no reason to worry, an old one names the late ranks."""
    executor = build({"hang_token": HANG}).start()
    monkeypatch.setattr(
        executor.ranks, "task", lambda *args: pytest.fail(f"the ranks were asked {args}")
    )
    monkeypatch.setattr(executor_module, "RECENT_S", 600.0)
    executor.check_health()
    monkeypatch.setattr(executor_module, "RECENT_S", 0.0)
    executor.execute_model(first_step(1, HANG))
    monkeypatch.setattr(executor_module, "HEALTH_TIMEOUT_S", 600.0)
    executor.check_health()
    monkeypatch.setattr(executor_module, "HEALTH_TIMEOUT_S", 0.0)
    with pytest.raises(TimeoutError, match=r"step 0 was not answered within 0 s by worker 0\.\d"):
        executor.check_health()


# ---------------------------------------------------------------------------------------------------------- errors
@forked
def test_an_error_in_a_rank_that_sends_no_results_ends_the_step(build, first_step):
    built = build({"later_s": 0.01, "fault": "launch"})
    executor = built.start()
    with pytest.raises(RuntimeError, match=r"worker 0\.1: the launch went wrong"):
        run_steps(executor, [first_step(step_id=step_id) for step_id in range(100)])


def test_what_cannot_be_sent_raises_at_once(healthy, first_step):
    """Q7, WK-3: at the caller, and the ranks live on."""
    for bad in (object(), 1 << 70, {"a": {1, object()}}):
        with pytest.raises(TypeError, match="arguments of 'echo'"):
            healthy.call("echo", [bad])
    with pytest.raises(TypeError, match="object cannot be sent"):
        healthy.execute_model(SchedulerOutput(step_id=0, connector_metadata=object()))
    with pytest.raises(TypeError, match=r"worker 0\.[01]: object cannot be sent"):
        healthy.call("give")
    assert healthy.execute_model(first_step()).result(10).row.tolist() == [0]


@forked
def test_an_error_of_one_rank_is_raised_though_others_wait(build):
    executor = build().start()
    with pytest.raises(Exception, match=r"worker 0\.1: KeyError: 'it'"):
        executor.call("complain", [1], 20)
    executor.ranks.stop(0.5)


def test_a_name_that_is_not_allowed_is_refused_by_every_rank(healthy):
    for name in ("stop", "initialize", "check_health", "__init__"):
        with pytest.raises(Unsupported, match=rf"worker 0\.[01]: .*'{name}'"):
            healthy.call(name)


# ---------------------------------------------------------------------------------------------------------- the end
@forked
def test_nothing_can_be_asked_too_late(build, first_step):
    """Q8: a clear error, never a wait."""
    built = build({"hang_token": HANG})
    with pytest.raises(RuntimeError, match="not started"):
        built.executor.call("echo")
    executor = built.start()
    future = executor.execute_model(first_step(1, HANG))
    executor.ranks.stop(0.5)
    executor.shutdown()
    executor.shutdown()
    for attempt in (
        future.result,
        lambda: executor.call("echo", []),
        lambda: executor.execute_model(first_step()),
        executor.check_health,
    ):
        with pytest.raises(EngineDeadError, match="is shut down"):
            attempt()
    assert future.done()
    assert built.reasons == []


def test_an_orderly_stop_shuts_every_worker_down_and_leaves_nothing(build, tmp_path, errors_logged):
    """WK-5, WK-9: no process, no file descriptor, no shared memory, no word in the log."""
    before = open_files()
    built = build({"notes": str(tmp_path)})
    executor = built.start()
    pids = built.pids
    executor.shutdown()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stopped-0", "stopped-1"]
    assert gone(pids)
    closed(before)
    assert errors_logged() == []
