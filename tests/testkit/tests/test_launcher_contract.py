"""The suite of launchers, over one that starts sleeping processes, over broken ones, and over that of the kernel."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading

import pytest

from tenonry.interfaces.launcher import Launcher, engine_name
from tenonry_testkit.launcher import LauncherContract
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.processes import children_killed

NAMES = "test_engines_run_under_their_names"
EXITS = "test_an_exit_is_reported_once"
STOPS = "test_stopped_engines_are_gone_and_not_reported"
RENAMES = "test_engines_take_names_of_others"
AGAIN = "test_a_name_is_free_again_after_its_engine"
SHUTDOWN = "test_shutdown_leaves_no_process"


class Sleeping(Launcher):
    """Its engines sleep. One thread per engine waits for its end."""

    supports_replacement = True

    def __init__(self, context):
        super().__init__(context)
        self.lock = threading.Lock()
        self.running = {}
        self.ended = {}
        self.callbacks = []
        self.threads = []

    def start(self, engines):
        for spec in engines:
            self.launch(engine_name(spec.engine_index))

    def launch(self, name):
        child = subprocess.Popen(["sleep", "600"])
        with self.lock:
            self.running[name] = child
            self.ended.pop(name, None)
        thread = threading.Thread(target=self.watch, args=(child,), daemon=True)
        self.threads.append(thread)
        thread.start()

    def watch(self, child):
        code = child.wait()
        with self.lock:
            name = next((name for name, each in self.running.items() if each is child), None)
            if name is None:
                return
            del self.running[name]
            self.ended[name] = code
            callbacks = list(self.callbacks)
        for callback in callbacks:
            self.report(callback, name, child.pid, code)

    def report(self, callback, name, pid, code):
        callback(name, pid, code)

    def stop(self, names, timeout=5.0):
        for name in names:
            with self.lock:
                child = self.running.pop(name, None)
            if child is not None:
                child.kill()
                child.wait()

    def rename(self, name, new):
        with self.lock:
            if name in self.running:
                self.running[new] = self.running.pop(name)

    def finished(self):
        with self.lock:
            return dict(self.ended)

    def on_exit(self, callback):
        with self.lock:
            self.callbacks.append(callback)

    def pids(self):
        with self.lock:
            return {name: child.pid for name, child in self.running.items()}

    def shutdown(self, timeout=5.0):
        self.stop(list(self.pids()))


class StartsOne(Sleeping):
    caught_by = NAMES

    def start(self, engines):
        super().start(engines[:1])


class NumbersThemItself(Sleeping):
    caught_by = NAMES

    def start(self, engines):
        for number, _ in enumerate(engines, len(self.running)):
            self.launch(f"engine {number}")


class SharesAProcess(Sleeping):
    caught_by = NAMES

    def launch(self, name):
        if self.running:
            self.running[name] = next(iter(self.running.values()))
        else:
            super().launch(name)


class ReportsNothing(Sleeping):
    caught_by = EXITS

    def report(self, callback, name, pid, code):
        pass


class ReportsTwice(Sleeping):
    caught_by = EXITS

    def report(self, callback, name, pid, code):
        callback(name, pid, code)
        callback(name, pid, code)


class LosesTheSignal(Sleeping):
    caught_by = EXITS

    def report(self, callback, name, pid, code):
        callback(name, pid, abs(code))


class KeepsOneCallback(Sleeping):
    caught_by = EXITS

    def on_exit(self, callback):
        self.callbacks = [callback]


class ForgetsWhoFinished(Sleeping):
    caught_by = EXITS

    def finished(self):
        return {}


class StopsNothing(Sleeping):
    caught_by = STOPS

    def stop(self, names, timeout=5.0):
        with self.lock:
            for name in names:
                self.running.pop(name, None)


class StopsAll(Sleeping):
    caught_by = STOPS

    def stop(self, names, timeout=5.0):
        super().stop(list(self.pids()))


class KnowsItsNames(Sleeping):
    caught_by = STOPS

    def stop(self, names, timeout=5.0):
        super().stop([name for name in names if self.running[name]])


class ReportsStops(Sleeping):
    caught_by = STOPS

    def stop(self, names, timeout=5.0):
        for name in names:
            if name in self.pids():
                os.kill(self.pids()[name], signal.SIGKILL)
        for thread in [each for each in self.threads if names]:
            thread.join(0.2)


class RenamesNothing(Sleeping):
    caught_by = RENAMES

    def rename(self, name, new):
        pass


class RenamesTheUnknown(Sleeping):
    caught_by = RENAMES

    def rename(self, name, new):
        with self.lock:
            self.running[new] = self.running.pop(name)


class PromisesReplacement(Sleeping):
    caught_by = RENAMES

    rename = Launcher.rename


class StartsOnce(Sleeping):
    caught_by = AGAIN

    def __init__(self, context):
        super().__init__(context)
        self.known = set()

    def launch(self, name):
        if name not in self.known:
            super().launch(name)
        self.known.add(name)


class GuessesSteps(Sleeping):
    caught_by = "test_it_says_whether_an_engine_stepped"

    def has_stepped(self, name):
        return self.running[name].pid


class PreparesTooMuch(Sleeping):
    caught_by = "test_preparing_starts_no_engine"

    def prepare(self, engine):
        self.start([engine])


class LeavesOne(Sleeping):
    caught_by = SHUTDOWN

    def shutdown(self, timeout=5.0):
        self.stop(list(itertools.islice(self.pids(), 1)))


class ShutsDownOnce(Sleeping):
    caught_by = SHUTDOWN
    is_down = False

    def shutdown(self, timeout=5.0):
        if self.is_down:
            raise RuntimeError("it is down already")
        self.is_down = True
        super().shutdown(timeout)


class NamesANumber(Sleeping):
    caught_by = "test_it_is_a_launcher_that_the_kernel_accepts"

    def host(self):
        return 127


BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


@pytest.mark.integration
class TestSleeping(LauncherContract):
    launcher = Sleeping


@pytest.mark.nightly  # the tests of the kernel have it for every change
class TestProcess(LauncherContract):
    launcher = "process"


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.integration
@pytest.mark.broken("launcher")
def test_broken_ones_are_caught(broken):
    suite = type("Suite", (LauncherContract,), {"launcher": broken, "exit_timeout_s": 0.5})
    with children_killed():
        assert broken.caught_by in failing_tests(suite, [broken.caught_by])


def test_every_test_of_the_suite_catches_one():
    tests = {name for name in dir(LauncherContract) if name.startswith("test_")}
    assert tests == {broken.caught_by for broken in BROKEN}
