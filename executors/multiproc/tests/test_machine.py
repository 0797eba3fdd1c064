from __future__ import annotations

import os

import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry_executor_multiproc import machine
from tenonry_executor_multiproc.machine import (
    Rendezvous,
    check_devices,
    threads_per_rank,
    usable_cores,
)


@pytest.mark.parametrize(
    ("cores", "settings", "threads"),
    [
        (8, {"tensor_parallel_size": 2}, 4),
        (8, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, 2),
        (8, {"tensor_parallel_size": 2, "data_parallel_size": 2}, 2),
        (2, {"tensor_parallel_size": 4}, 1),
        (8, {}, None),
    ],
)
def test_threads_never_outnumber_cores(monkeypatch, cores, settings, threads):
    """WK-13."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine, "usable_cores", lambda: cores)
    assert threads_per_rank(EngineConfig(model="m", **settings)) == threads


def test_the_users_number_of_threads_stands(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads_per_rank(EngineConfig(model="m", tensor_parallel_size=2)) is None


def test_there_is_a_core():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def test_too_few_devices_are_counted_and_named(monkeypatch):
    monkeypatch.setattr(machine, "cuda_devices", lambda: 1)
    with pytest.raises(ConfigError, match=r"4 ranks .* need 4 CUDA devices, but this node has 1"):
        check_devices("cuda", 4)
    with pytest.raises(ConfigError, match=r"device=cuda:1 is one device, but there are 2 ranks"):
        check_devices("cuda:1", 2)
    for device, ranks in (("cpu", 4), ("auto", 4), ("cuda", 1), ("cuda:0", 1)):
        check_devices(device, ranks)


def test_devices_that_nobody_can_count_are_left_to_the_worker(monkeypatch):
    monkeypatch.setattr(machine, "cuda_devices", lambda: None)
    check_devices("cuda", 4)


def test_a_rendezvous_leaves_nothing():
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - as text
    meeting = Rendezvous(2)
    assert meeting.url == f"file:///proc/self/fd/{meeting.fds[0]}"
    meeting.close()
    meeting.close()
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
    assert Rendezvous(1).url == ""
