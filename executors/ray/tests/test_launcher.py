"""The launcher `ray` in a real Ray, with a role of the tests in the engines' place (RA-1…7, HS-17, Q3, Q12)."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys

import psutil
import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, LaunchError
from tenonry.info import PluginRecord
from tenonry.interfaces.launcher import EngineSpec, LauncherContext
from tenonry.plugin.plan import PluginPlan
from tenonry_executor_ray.launcher import RayLauncher
from tenonry_executor_ray.options import RayLauncherOptions

pytestmark = [pytest.mark.timeout(200), pytest.mark.usefixtures("no_actor_left")]
PATIENCE_S = 60.0  # for hangs: Ray starts processes while other tests run
RAY_ENDED_IT = 1  # the status of a process in which a thread called Ray as it disconnected


INSTANT = "tenonry_testkit.fakes:InstantExecutor"
RAY = "tenonry_executor_ray.executor:RayExecutor"


def plan(version="0.1.0", distribution="tenonry-executor-ray", executor=INSTANT):
    launcher = PluginRecord(
        kind="launcher", name="ray", target="x:Y", distribution=distribution, version=version
    )
    return PluginPlan((launcher, PluginRecord(kind="executor", name="any", target=executor)))


def specs(count, *, plan_text=None, first=0, **told):
    return [
        EngineSpec(
            engine_index=first + index,
            local_rank=index,
            handshake_address="tcp://127.0.0.1:1",
            config_text=json.dumps(told),
            plan_text=plan_text or plan().encode(),
            model_text="{}",
        )
        for index in range(count)
    ]


@pytest.fixture
def launcher(cluster, monkeypatch):
    """`launcher(engines, **options)`: a launcher whose engines run the test's role."""
    from tenonry_executor_ray.fleet import Fleet

    monkeypatch.setattr(Fleet, "role", "ray_test_roles:run")
    built = []

    def build(engines=1, *, config=None, **options):
        config = EngineConfig(
            **{"model": "m", "device": "cpu", "data_parallel_size": engines, **(config or {})}
        )
        given = RayLauncherOptions(**{"address": cluster.address, **options})
        built.append(RayLauncher(LauncherContext(config, options=given)))
        return built[-1]

    yield build
    for one in built:
        one.shutdown()


@pytest.fixture
def connection(cluster, connect):
    """A process that is connected already, as a user's may be.

    Request it before `launcher`, whose engines end first then: Ray may end a process that disconnects while another
    thread of it calls Ray.
    """
    ray = connect(cluster.address, namespace="tests")
    yield ray
    ray.shutdown()


def listen(launcher):
    heard = queue.SimpleQueue()
    launcher.on_exit(lambda *what: heard.put(what))
    return heard


def groups_in_use():
    """Names of placement groups that hold resources."""
    from ray.util import placement_group_table

    return {
        group["name"] for group in placement_group_table().values() if group["state"] != "REMOVED"
    }


# ------------------------------------------------------------------ life
def test_two_engines_start_and_stop(launcher, tmp_path, wait_for, is_running):
    """RA-1, RA-4, RA-7: connected by the launcher, two children of two actors, and nothing of it afterwards."""
    import ray

    file, one = tmp_path / "engines", launcher(2)
    handler = signal.getsignal(signal.SIGTERM)
    assert one.host()
    assert signal.getsignal(signal.SIGTERM) is handler, (
        "Ray's own handler would end the front end at once"
    )
    one.start(specs(2, file=str(file)))
    pids = one.pids()
    assert sorted(pids) == ["engine 0", "engine 1"]
    wait_for(
        lambda: file.exists() and len(file.read_text().splitlines()) == 2,
        "the start of both engines",
    )
    lines = [line.split() for line in file.read_text().splitlines()]
    assert {int(pid) for pid, *_ in lines} == set(pids.values())
    assert {devices for _, devices, _ in lines} == {"None"}, (
        "Q12: nothing is hidden from an engine without GPUs"
    )
    assert groups_in_use() == {"dp_rank_0", "dp_rank_1"}
    assert one.finished() == {}
    one.shutdown()
    one.shutdown()
    assert not ray.is_initialized()
    assert not any(is_running(pid) for pid in pids.values())


@pytest.mark.nightly
def test_every_end_is_reported_once(connection, launcher, is_running, wait_for):
    """Q3: an actor that is killed, an engine that is killed, and one that ends; stopping one is no such end."""
    one = launcher(4)
    heard = listen(one)
    one.start(specs(3))
    one.start(specs(1, first=3, exit=3))
    assert heard.get(timeout=PATIENCE_S)[::2] == ("engine 3", 3)
    pids = one.pids()
    os.kill(psutil.Process(pids["engine 0"]).ppid(), signal.SIGKILL)
    assert heard.get(timeout=PATIENCE_S) == ("engine 0", pids["engine 0"], -9)
    wait_for(lambda: not is_running(pids["engine 0"]), "the end of an engine whose actor died")
    os.kill(pids["engine 1"], signal.SIGKILL)
    assert heard.get(timeout=PATIENCE_S) == ("engine 1", pids["engine 1"], -9)
    assert one.finished() == {"engine 0": -9, "engine 1": -9, "engine 3": 3}
    one.stop(["engine 2", "engine 0", "engine 9"])
    assert (one.pids(), one.finished()) == ({}, {"engine 1": -9, "engine 3": 3})
    assert groups_in_use() == {"dp_rank_1", "dp_rank_3"}
    one.shutdown()
    assert heard.empty()
    assert groups_in_use() == set()
    assert connection.is_initialized(), "RA-7: the connection was not the launcher's"


@pytest.mark.nightly
def test_an_engine_that_ended_is_started_again(connection, launcher):
    """Under its number, in a new actor and a new group of the same name."""
    one = launcher(1)
    heard = listen(one)
    one.start(specs(1))
    before = one.pids()
    os.kill(psutil.Process(before["engine 0"]).ppid(), signal.SIGKILL)
    assert heard.get(timeout=PATIENCE_S)[0] == "engine 0"
    one.stop(["engine 0"])
    one.start(specs(1))
    assert one.pids().keys() == {"engine 0"}
    assert one.pids() != before
    assert one.finished() == {}
    assert groups_in_use() == {"dp_rank_0"}


OWNER = """
import queue, sys
import ray
from tenonry.config import EngineConfig
from tenonry.interfaces.launcher import EngineSpec, LauncherContext
from tenonry_executor_ray.fleet import Fleet
from tenonry_executor_ray.launcher import RayLauncher
from tenonry_executor_ray.options import RayLauncherOptions

Fleet.role = "ray_test_roles:run"
address, plan_text = sys.argv[1:]
ray.init(address=address, namespace="owner", log_to_driver=False)
config = EngineConfig(model="m", device="cpu")
one = RayLauncher(LauncherContext(config, options=RayLauncherOptions(address=address)))
heard = queue.SimpleQueue()
one.on_exit(lambda *what: heard.put(what))
one.start([EngineSpec(engine_index=0, local_rank=0, handshake_address="tcp://127.0.0.1:1", config_text="{}",
                      plan_text=plan_text, model_text="{}")])
ray.shutdown()
print(heard.get(timeout=20)[0])
one.shutdown()
print(ray.is_initialized())
"""


@pytest.mark.nightly
def test_a_connection_that_its_owner_ends_takes_the_engines_along(cluster):
    """They are reported, and querying them starts no other cluster, unless Ray ends the process immediately."""
    command = [sys.executable, "-c", OWNER, cluster.address, plan().encode()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    ends = [(0, "engine 0\nFalse\n"), (RAY_ENDED_IT, "")]
    assert (done.returncode, done.stdout) in ends, done.stderr


def test_engines_get_the_gpus_of_their_bundles(launcher, tmp_path, wait_for):
    """DP-2, RA-3: Ray assigns no GPU to the actor on the CPU bundle; the engine still gets those of its group."""
    file, one = tmp_path / "engines", launcher(2, config={"device": "cuda"})
    one.start(specs(2, file=str(file)))
    wait_for(
        lambda: file.exists() and len(file.read_text().splitlines()) == 2,
        "the start of both engines",
    )
    assert sorted(line.split()[1] for line in file.read_text().splitlines()) == ["0", "1"]


# ------------------------------------------------------------------ groups and room
def test_given_groups_are_used_and_kept(connection, launcher):
    """RA-2: the user's groups hold the engines, and still exist afterwards."""
    from ray.util import placement_group, remove_placement_group

    group = placement_group([{"CPU": 1}, {"CPU": 1}], name="mine")
    try:
        assert group.wait(PATIENCE_S)
        one = launcher(1, placement_group="mine")
        one.start(specs(1))
        assert groups_in_use() == {"mine"}
        one.shutdown()
        assert groups_in_use() == {"mine"}
        with pytest.raises(ConfigError, match=r"names 1 groups \(mine\), but there are 2 engines"):
            launcher(2, placement_group="mine").start(specs(2))
        with pytest.raises(ConfigError, match=r"'mine' has 2 bundles, but engine 0 needs 3"):
            launcher(1, config={"tensor_parallel_size": 2}, placement_group="mine").start(specs(1))
        with pytest.raises(ConfigError, match="'yours' cannot be found"):
            launcher(1, placement_group="yours").start(specs(1))
        named = placement_group([{"CPU": 1}], name="dp_rank_0")
        with pytest.raises(
            ConfigError,
            match=r"'dp_rank_0' cannot be made \(.*already exists\.\); .* namespace=NAME",
        ):
            launcher(1).start(specs(1))
        remove_placement_group(named)
    finally:
        remove_placement_group(group)


@pytest.mark.nightly_after(2)
@pytest.mark.parametrize(
    ("engines", "config", "text"),
    [
        (
            5,
            {},
            r"5 engines need 2 CPU each, all on one node: node \S+ has 8 of 8 CPU free \(room for 4\)",
        ),
        (
            1,
            {"device": "cuda", "tensor_parallel_size": 4},
            r"an engine needs 4 GPU and 1 CPU, .* has 2 of 2 GPU and 8 of",
        ),
        (5, {"data_parallel_size_local": 5}, "each, 5 of them on this node"),
        (
            1,
            {"executor": "ray", "tensor_parallel_size": 9},
            "an engine needs 10 CPU, but the cluster has 8",
        ),
        (1, {"device": "cuda:1"}, "use device=cuda"),
    ],
)
def test_too_few_resources_are_counted(connection, launcher, wait_for, engines, config, text):
    """RA-5: available and required resources, in total and per node; nothing is left behind."""
    everything = {"CPU": 8, "GPU": 2}.items()
    wait_for(
        lambda: everything <= connection.available_resources().items(),
        "the return of what others had reserved",
    )
    plan_text = plan(executor=RAY if "executor" in config else INSTANT).encode()
    with pytest.raises(ConfigError, match=text):
        launcher(engines, config=config).start(specs(engines, plan_text=plan_text))
    assert groups_in_use() == set()


# ------------------------------------------------------------------ versions and addresses
@pytest.mark.nightly
def test_another_version_on_a_node_is_refused(connection, launcher):
    """The node, the package and both versions; no engine starts."""
    one = launcher(1)
    text = r"node \S+ \(\S+\) \(engine 0\) has tenonry-executor-ray 0\.1\.0, this one has 9\.9; install the same"
    with pytest.raises(LaunchError, match=text):
        one.start(specs(1, plan_text=plan("9.9").encode()))
    assert one.pids() == one.finished() == {}
    assert groups_in_use() == set()


def test_a_cluster_that_is_not_there_is_refused_at_once():
    """Ray itself would try for a minute."""
    config = EngineConfig(model="m")
    one = RayLauncher(LauncherContext(config, options=RayLauncherOptions(address="127.0.0.1:1")))
    with pytest.raises(
        LaunchError, match=r"no Ray cluster answers at 127\.0\.0\.1:1; start its head there"
    ):
        one.host()
    assert one.pids() == one.finished() == {}


@pytest.mark.parametrize("address", ["ray://host:10001", "host", "host:port"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="is not the host:port of a Ray head"):
        RayLauncherOptions(address=address)


# ------------------------------------------------------------------ names travel
@pytest.mark.parametrize(
    "name", ["engine_actor:EngineActor", "rank_actor:RankActor", "engine_actor:gpu_ids"]
)
def test_no_code_of_ours_travels(name):
    """An actor's pickled definition holds the name of our class; the code in it is that of Ray's own wrapper."""
    import importlib

    import ray.cloudpickle
    from ray.actor import _modify_class

    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(f"tenonry_executor_ray.{module}"), attribute)
    sent = ray.cloudpickle.dumps(found)
    assert len(sent) < 100
    assert f"tenonry_executor_ray.{module}".encode() in sent
    if isinstance(found, type):
        assert f"{module}.py".encode() not in ray.cloudpickle.dumps(_modify_class(found))
