"""The launcher `ray` in a real Ray, with a role of the tests in the engines' place (RA-1…7, HS-17, Q3, Q12)."""

from __future__ import annotations

import signal

import pytest

from tenonry.config import EngineConfig
from tenonry.interfaces.launcher import EngineSpec, LauncherContext
from tenonry.plugin_plan import PlanEntry, PluginPlan
from tenonry_executor_ray.launcher import RayLauncher
from tenonry_executor_ray.options import RayLauncherOptions

PLAN = PluginPlan((PlanEntry(kind="launcher", name="ray", target="x:Y", distribution="tenonry", version="0.1.0"),))


def specs(count, *, plan=PLAN, first=0, **environment):
    return [
        EngineSpec(
            engine_index=first + index,
            local_rank=index,
            handshake_address="tcp://127.0.0.1:1",
            config_text="{}",
            plan_text=plan.encode(),
            model_text="{}",
            environment=environment,
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
        config = EngineConfig(model="m", device="cpu", data_parallel_size=engines, **(config or {}))
        given = RayLauncherOptions(**{"address": cluster.address, **options})
        built.append(RayLauncher(LauncherContext(config, options=given)))
        return built[-1]

    yield build
    for one in built:
        one.shutdown()


def test_two_engines_start_and_stop(launcher, tmp_path, wait_for, is_running):
    """RA-1, RA-4, RA-7: connected by the launcher, two children of two actors, and nothing of it afterwards."""
    import ray

    file = tmp_path / "engines"
    one = launcher(2)
    handler = signal.getsignal(signal.SIGTERM)
    assert one.host()
    assert signal.getsignal(signal.SIGTERM) is handler
    one.start(specs(2, ROLE_FILE=str(file)))
    pids = one.pids()
    assert sorted(pids) == ["engine 0", "engine 1"]
    wait_for(lambda: file.exists() and len(file.read_text().splitlines()) == 2, "both engines")
    lines = [line.split() for line in file.read_text().splitlines()]
    assert {int(pid) for pid, *_ in lines} == set(pids.values())
    assert {devices for _, devices, _ in lines} == {"None"}, "Q12: nothing is hidden from an engine without GPUs"
    assert one.finished() == {}
    one.shutdown()
    assert not ray.is_initialized()
    assert not any(is_running(pid) for pid in pids.values())
