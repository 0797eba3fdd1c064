from __future__ import annotations

import os
import sys

import msgspec
import pytest

from tenonry_bench.machine import describe_machine, physical_cores, torch_threads, usable_cores


@pytest.mark.integration
def test_the_machine_is_described():
    machine = describe_machine()
    assert machine.python.endswith(".".join(map(str, sys.version_info[:3])))
    assert machine.cpu
    assert machine.memory_gib > 0
    assert {"tenonry", "tenonry-bench", "numpy", "msgspec"} <= set(machine.versions)
    assert msgspec.json.decode(msgspec.json.encode(machine), type=type(machine)) == machine


def test_only_cores_that_this_process_may_use_count(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0}, raising=False)
    assert usable_cores() == physical_cores() == 1


def test_threads_are_those_of_the_torch_that_is_loaded(monkeypatch):
    class Torch:
        @staticmethod
        def get_num_threads() -> int:
            return 7

    monkeypatch.setitem(sys.modules, "torch", Torch())
    assert torch_threads() == 7
    monkeypatch.delitem(sys.modules, "torch")
    assert torch_threads() is None
