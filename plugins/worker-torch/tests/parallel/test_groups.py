"""Real process groups: two ranks join over TCP, as they do across nodes; gloo, this process and another."""

from __future__ import annotations

import socket
import subprocess
import sys

import psutil
import pytest
import torch
import worker_tools

from tenonry.errors import ConfigError
from tenonry_torch_base.parallel.groups import (
    Rendezvous,
    TensorGroup,
    alone,
    find_store,
    interface_towards,
    open_store,
)
from tenonry_worker_torch.worker import TorchWorker

SCRIPT = """
import sys
import torch
from tenonry.config import EngineConfig
from tenonry.interfaces.worker import WorkerContext
from tenonry.info import ModelInfo
from tenonry_torch_base.parallel.groups import Rendezvous

url, tp, pp = sys.argv[1], *map(int, sys.argv[2:])
sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
info = ModelInfo(name="m", path="m", architecture="M", max_model_len=8, vocab_size=8)
context = WorkerContext(EngineConfig(model="m", device="cpu", **sizes), info, max_model_len=8, rank=1, rendezvous=url)
rendezvous = Rendezvous(context)
place = rendezvous.join(context, torch.device("cpu"))
rendezvous.wait_for_all("joined")
if tp == 2:
    group = place.tensor
    group.sum(torch.tensor([1.0, 2.0]))
    group.gather(torch.tensor([[3.0], [4.0]]))
    assert group.broadcast(torch.zeros(2)).tolist() == [7.0, 8.0]
    assert not group.all_agree(False)
    assert group.all_agree(True)
else:
    place.link.carries(2, torch.float32, torch.device("cpu"))
    given = [place.link.inputs(torch.zeros(count, dtype=torch.long)) for count in (1, 3, 2)]
    assert [float(tensor.sum()) for tensor in given] == [2.0, 6.0, 4.0]
rendezvous.leave()
"""


def first_of_two(tp, pp):
    """Rank 0 in this process, with the other one started."""
    context = worker_tools.context("m", tensor_parallel_size=tp, pipeline_parallel_size=pp)
    worker = TorchWorker(context)
    url = worker.open_rendezvous("127.0.0.1")
    assert url.startswith("tcp://127.0.0.1:")
    other = subprocess.Popen([sys.executable, "-c", SCRIPT, url, str(tp), str(pp)])
    rendezvous = Rendezvous(context, worker._opened)
    place = rendezvous.join(context, torch.device("cpu"))
    rendezvous.wait_for_all("joined")
    return rendezvous, place, other


@pytest.mark.integration
def test_ranks_that_share_layers_sum_gather_and_agree():
    hook = sys.excepthook
    rendezvous, place, other = first_of_two(2, 1)
    group = place.tensor
    assert group.sum(torch.tensor([10.0, 20.0])).tolist() == [11.0, 22.0]
    assert group.gather(torch.tensor([[1.0], [2.0]])).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert group.gather(torch.empty(0, 5)).shape == (0, 10)
    assert group.sum(torch.empty(0)).shape == (0,)
    group.broadcast(torch.tensor([7.0, 8.0]))
    assert not group.all_agree(True)
    assert group.all_agree(True)
    rendezvous.leave()
    assert other.wait(30) == 0
    assert sys.excepthook is hook


@pytest.mark.integration
def test_stages_hand_on_several_steps_without_waiting():
    rendezvous, place, other = first_of_two(1, 2)
    assert place.link.is_first
    assert not place.link.is_last
    for count in (1, 3, 2):
        place.link.send(torch.ones(count, 2))
    assert other.wait(30) == 0
    rendezvous.leave()


@pytest.mark.parametrize(
    "url", ["", "file://", "http://localhost:1", "tcp://localhost", "nonsense"]
)
def test_an_invalid_rendezvous_is_refused(url):
    with pytest.raises(
        ConfigError,
        match=f"rendezvous '{url}' of several ranks must be file:///PATH or tcp://HOST:PORT",
    ):
        find_store(url, 2, 1.0)


def test_a_host_that_is_not_this_node_is_refused():
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        open_store("192.0.2.1", 2, 1.0)


def test_ranks_use_the_interface_that_leads_to_the_rendezvous():
    loopback = interface_towards("127.0.0.1")
    assert loopback in {name for _, name in socket.if_nameindex()}
    own = [
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    ]
    for name, address in own:
        assert interface_towards(address) == name


def test_the_only_rank_communicates_with_no_other():
    group, x = TensorGroup(), torch.ones(2)
    assert group.sum(x) is x
    assert group.gather(x) is x
    assert group.broadcast(x) is x
    assert group.all_agree(True)
    assert alone().is_alone
