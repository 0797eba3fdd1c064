from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import psutil
import pytest

from tenonry.errors import TenonryError
from tenonry_bench.processes import (
    CpuMeter,
    PeakMemory,
    below,
    cpu_seconds,
    seconds_to_run,
    seconds_until,
    tenonry_command,
)

pytestmark = pytest.mark.integration

SPIN = "import sys; sys.stdin.readline(); sum(range(3_000_000)); print('done', flush=True); sys.stdin.readline()"


HOARD = """
import sys
sys.stdin.readline(); data = bytearray(60 << 20); print("has it", flush=True)
sys.stdin.readline(); del data; print("gave it back", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def child(code):
    """A Python process that ends with its standard input at the latest."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        if process.poll() is None:
            process.communicate("\n\n\n")


@pytest.fixture
def spinner():
    """Computes when it gets a line, and lives until it gets a second one."""
    with child(SPIN) as process:
        yield process


@pytest.fixture
def memory_user():
    """Allocates 60 MiB at its first line, frees them at the second and exits at the third."""
    with child(HOARD) as process:
        yield process


def test_cpu_time_of_another_process_is_what_the_system_counts(spinner):
    spinner.stdin.write("\n")
    spinner.stdin.flush()
    assert spinner.stdout.readline() == "done\n"
    process = psutil.Process(spinner.pid)
    times = process.cpu_times()
    assert cpu_seconds(process) == pytest.approx(times.user + times.system, abs=0.05)


def test_the_meter_tells_this_process_from_its_children(spinner):
    meter = CpuMeter()
    meter.take()
    spinner.stdin.write("\n")
    spinner.stdin.flush()
    spinner.stdout.readline()
    mine, theirs = meter.take()
    assert theirs > mine >= 0
    assert meter.take()[1] < theirs


def test_the_meter_counts_no_more_than_it_is_given(spinner):
    assert [process.pid for process in below()] == [spinner.pid]
    of_none = CpuMeter([])
    own = CpuMeter([psutil.Process(spinner.pid)])
    spinner.stdin.write("\n")
    spinner.stdin.flush()
    spinner.stdout.readline()
    assert of_none.take()[1] == 0
    assert own.take()[1] > 0


def test_a_measured_process_that_ends_is_named(spinner):
    meter = CpuMeter()
    spinner.communicate("\n\n")
    with pytest.raises(TenonryError, match=f"process {spinner.pid} ended while"):
        meter.take()


def test_a_process_that_is_gone_is_an_error():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        process = psutil.Process(child.pid)
    with pytest.raises(psutil.NoSuchProcess):
        cpu_seconds(process)


def test_peak_memory_sees_what_was_there_and_is_gone(memory_user):
    with PeakMemory(memory_user.pid, period_s=0.01) as small:
        pass
    with PeakMemory(memory_user.pid, period_s=0.01) as large:
        memory_user.stdin.write("\n")
        memory_user.stdin.flush()
        assert memory_user.stdout.readline() == "has it\n"
        for _ in range(1000):  # until the watching thread had its turn
            if large.rss_bytes > small.rss_bytes + (30 << 20):
                break
            time.sleep(0.01)
        memory_user.stdin.write("\n")
        memory_user.stdin.flush()
        assert memory_user.stdout.readline() == "gave it back\n"
    assert large.rss_bytes > small.rss_bytes + (30 << 20)
    assert 0 < large.pss_bytes < large.rss_bytes - (30 << 20)


def test_seconds_until_waits_for_the_marker_and_the_end():
    command = [
        sys.executable,
        "-c",
        "print('other'); print('READY now', flush=True); print('more')",
    ]
    assert seconds_until(command, "READY") > 0


def test_a_command_that_never_says_it_is_an_error_with_its_last_words():
    command = [sys.executable, "-c", "import sys; sys.exit('the cause')"]
    with pytest.raises(TenonryError, match=r"status 1 before it printed READY:\n.*the cause"):
        seconds_until(command, "READY")
    with pytest.raises(TenonryError, match=r"status 1:\n.*the cause"):
        seconds_to_run(command)


def test_the_command_of_this_environment_is_found():
    assert seconds_to_run([*tenonry_command(), "--version"]) > 0
