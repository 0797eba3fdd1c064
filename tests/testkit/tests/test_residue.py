"""Tests that leave something behind fail at teardown, by name; tests that do not are left alone."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.integration

pytest_plugins = ["pytester"]

LEAVING = """
import os, pathlib, socket, subprocess, sys, tempfile, threading, time
import pytest

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
kept = []

def test_process():
    kept.append(subprocess.Popen(SLEEP))

def test_orphan():
    code = f"import subprocess, sys; subprocess.Popen({SLEEP!r}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_thread():
    threading.Thread(target=time.sleep, args=(4,), name="lingering").start()

def test_socket():
    kept.append(socket.create_server(("127.0.0.1", 0)))

def test_shared_memory():
    path = pathlib.Path(f"/dev/shm/tenonry-testkit-residue-{os.getpid()}")
    path.write_bytes(b"x")

def test_run_folder():
    folder = tempfile.mkdtemp(prefix="tenonry-")
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind(folder + "/s")
    kept[-1].close()

@pytest.fixture(scope="module")
def careless():
    return subprocess.Popen(SLEEP)

def test_last_user_of_a_careless_fixture(careless):
    pass
"""

CLEAN = """
import os, socket, subprocess, sys, tempfile, threading, time
import pytest

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]

@pytest.fixture(scope="module")
def shared():
    process = subprocess.Popen(SLEEP)
    listener = socket.create_server(("127.0.0.1", 0))
    yield process
    listener.close()
    process.kill()
    process.wait()

def test_first_user(shared):
    assert shared.poll() is None

def test_second_user(shared):
    assert shared.poll() is None

def test_without(tmp_path):
    (tmp_path / "file").write_text("")

def test_that_needs_a_moment():
    threading.Timer(0.05, lambda: None).start()

def test_daemon_thread():
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

def test_cycle():
    class Holder: pass
    holder = Holder()
    holder.me, holder.listener = holder, socket.socket()
    holder.listener.bind(("127.0.0.1", 0))
    holder.listener.listen()

def test_beside_another_run():
    tempfile.mkdtemp(prefix=f"tenonry-{os.getppid()}-")

@pytest.mark.leaves_residue("on purpose")
def test_excused():
    subprocess.Popen(SLEEP)

def test_after_it():
    pass
"""


@pytest.fixture
def run_inner(pytester, monkeypatch, tmp_path):
    """Run a file under the plugin in a process of its own, with run folders in a folder of its own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def run(source, *ini):
        pytester.makepyfile(source)
        pytester.makeini("\n".join(["[pytest]", "tenonry_residue_grace_s = 0.4", *ini]))
        result = pytester.runpytest_subprocess(
            "-p", "no:randomly", "-rEf", "--tb=short", timeout=50
        )
        return result, result.stdout.str()

    return run


def test_each_kind_of_residue_is_an_error_of_its_test(run_inner):
    result, text = run_inner(LEAVING)
    result.assert_outcomes(passed=7, errors=7)
    blamed = dict(
        re.findall(r"ERROR at teardown of (\w+) _+\nthe test left behind:\n  ([^\n]+)", text)
    )
    assert set(blamed) == {
        "test_process", "test_orphan", "test_thread", "test_socket", "test_shared_memory", "test_run_folder",
        "test_last_user_of_a_careless_fixture",
    }  # fmt: skip
    assert "time.sleep(60)" in blamed["test_process"]
    assert "time.sleep(60)" in blamed["test_orphan"]
    assert "lingering" in blamed["test_thread"]
    assert "127.0.0.1" in blamed["test_socket"]
    assert "tenonry-testkit-residue" in blamed["test_shared_memory"]
    assert "/tenonry-" in blamed["test_run_folder"]


def test_clean_tests_pass(run_inner):
    result, text = run_inner(CLEAN)
    result.assert_outcomes(passed=9)
    assert "left behind" not in text


def test_watch_can_be_switched_off(run_inner):
    result, _ = run_inner(
        "import socket\nkept = []\ndef test_it():\n    kept.append(socket.create_server(('127.0.0.1', 0)))",
        "tenonry_residue = off",
    )
    result.assert_outcomes(passed=1)


def test_effort_reaches_the_suites(pytester):
    pytester.makepyfile(
        "from tenonry_testkit.search import effort\ndef test_it():\n    assert effort() == 7\n"
    )
    pytester.runpytest_subprocess("--testkit-effort=7", timeout=50).assert_outcomes(passed=1)
