"""Threads of a large model stay where they are during a step; nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tenonry_torch_base.openmp import team

pytestmark = [
    pytest.mark.skipif(
        team() is None or len(os.sched_getaffinity(0)) < 2, reason="needs two processors and OpenMP"
    ),
    pytest.mark.integration,
]


BEGIN = """
import os, sys, threading
import torch
from tenonry_torch_base import cpu_affinity
from tenonry_torch_base.openmp import thread_ids

processors = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, processors)
torch.set_num_threads(int(sys.argv[1]))
mine = threading.get_native_id()
ids = thread_ids(torch.get_num_threads())
others = [thread for thread in ids if thread != mine]
where = lambda thread: sorted(os.sched_getaffinity(thread))
found = cpu_affinity.CpuAffinity()
"""


def run(script: str, num_threads: int) -> None:
    """In a process of its own: where its threads may be changes."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMP", "GOMP"))
    }
    made = subprocess.run(
        [sys.executable, "-c", BEGIN + script, str(num_threads)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr


def test_each_thread_has_a_processor_during_a_step_and_only_then():
    run(
        """
with found:  # no place is taken yet
    assert all(where(thread) == processors for thread in ids)

found.take()
assert [where(thread) for thread in others] == [[processors[1]]]
assert where(mine) == processors
with found:
    assert where(mine) == [processors[0]]
    torch.ones(1 << 20).exp_()
assert where(mine) == processors

seen = []
thread = threading.Thread(target=lambda: seen.append(where(0)))
thread.start()
thread.join()
assert seen == [processors]  # what starts between steps may go everywhere

try:
    with found:
        raise ValueError
except ValueError:
    pass
assert where(mine) == processors
""",
        2,
    )


@pytest.mark.parametrize("num_threads", [1, 3], ids=["fewer", "more"])
@pytest.mark.nightly_after(1)
def test_threads_stay_free_if_they_are_not_as_many_as_processors(num_threads):
    run(
        """
found.take()
with found:
    assert all(where(thread) == processors for thread in ids)
""",
        num_threads,
    )


@pytest.mark.nightly
def test_threads_stay_free_that_sleep_soon_or_whose_places_are_given():
    run(
        """
for name, value in [
    ("GOMP_SPINCOUNT", "5000"),
    ("OMP_WAIT_POLICY", "passive"),
    ("OMP_PROC_BIND", "false"),
]:
    os.environ[name] = value
    found.take()
    with found:
        assert all(where(thread) == processors for thread in ids), name
    del os.environ[name]

found.take()
assert [where(thread) for thread in others] == [[processors[1]]]
""",
        2,
    )


@pytest.mark.nightly
def test_all_are_let_go_once_there_are_other_threads():
    """Those that OpenMP makes anew would begin on the processor of the thread that computes steps."""
    run(
        """
cpu_affinity.LOOK_S = 0.0
found.take()
now = thread_ids(2)
real = cpu_affinity.thread_ids
cpu_affinity.thread_ids = lambda number: [*real(number)[:-1], 1 << 30]
with found:
    assert all(where(thread) == processors for thread in now)
cpu_affinity.thread_ids = real
with found:
    assert all(where(thread) == processors for thread in now)
""",
        2,
    )
