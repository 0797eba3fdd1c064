"""Restrictions of a confined process, each tested in a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tenonry_models.confinement import CALLS

pytestmark = [
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or platform.machine() not in CALLS,
        reason="there is no such filter on this system",
    ),
    pytest.mark.integration,
]


FORBID = "from tenonry_models.confinement import *; import os, socket; assert forbid_calls()\n"


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "attempt",
    [
        "socket.socket()",
        "socket.socket(socket.AF_UNIX)",
        "socket.socketpair()",
        "os.execv('/bin/true', ['true'])",
        "os.fork()",
        "__import__('_thread').start_new_thread(print, ())",
        "os.posix_spawn('/bin/true', ['true'], {})",
    ],
)
def test_forbidden_calls_fail(attempt):
    done = run(f"{FORBID}{attempt}")
    assert done.returncode == 1
    assert "PermissionError" in done.stderr or "can't start new thread" in done.stderr


def test_files_can_still_be_written(tmp_path):
    done = run(f"{FORBID}open({str(tmp_path / 'a')!r}, 'w').write('x')")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a").read_text() == "x"


def test_a_process_without_network_reaches_nothing():
    code = """
from tenonry_models.confinement import leave_network
import socket
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
if not leave_network():
    print("not allowed"); raise SystemExit
client = socket.socket(); client.settimeout(2)
client.connect(listener.getsockname())
"""
    done = run(code)
    if "not allowed" in done.stdout:
        pytest.skip("this system lets no unprivileged process leave the network")
    assert done.returncode == 1
    assert "OSError" in done.stderr or "unreachable" in done.stderr


def test_limits_hold():
    code = """
from tenonry_models.confinement import limit
limit(1 << 20, 64 << 20)
try:
    bytearray(256 << 20)
except MemoryError:
    print("memory")
import signal, os
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    with open(os.devnull.replace("null", "shm/tenonry-limit-test"), "wb") as file:
        file.write(bytes(2 << 20))
except OSError:
    print("file")
finally:
    os.unlink("/dev/shm/tenonry-limit-test")
"""
    assert run(code).stdout.split() == ["memory", "file"]
