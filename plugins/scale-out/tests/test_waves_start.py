"""An engine among several looks before it loads anything (HS-13, DP-5)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import zmq

from tenonry.engine import loop
from tenonry.engine.loop import EngineLoop
from tenonry.errors import ConfigError, LaunchError
from tenonry.interfaces.launcher import EngineSpec
from tenonry.launch.supervise import Heartbeat
from tenonry.messages import CoordinatorFacts, HandshakeMetadata
from tenonry.plugin.manager import PluginManager
from tenonry_scale_out import waves
from tenonry_scale_out.wave_messages import Endpoints
from tenonry_testkit.fakes.model import FakeModelHooks
from tenonry_testkit.kernel.engine import fake_config


@pytest.mark.parametrize(
    ("worker", "error", "text"),
    [
        ("tenonry_testkit.fakes:FakeWorker", LaunchError, "the coordinator cannot be reached"),
        (
            "tenonry_testkit.kernel.faulty:SoloWorker",
            ConfigError,
            "the engines of this model step together, and worker 'tenonry_testkit.kernel.faulty:SoloWorker' has no dummy steps",  # noqa: E501
        ),
    ],
)
def test_what_cannot_work_is_said_before_a_model_is_loaded(
    tmp_path, monkeypatch, worker, error, text
):
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("an engine core was built")

    monkeypatch.setattr(waves, "CONNECT_TIMEOUT_MS", 50)
    monkeypatch.setattr(loop, "build_engine", load)
    config, manager = fake_config(worker=worker), PluginManager(discover=False)
    manager.register(FakeModelHooks())
    spec = EngineSpec(
        engine_index=1, local_rank=1, handshake_address="", config_text=config.model_dump_json(),
        plan_text=manager.plan(config).encode(),
        model_text=msgspec.json.encode(manager.resolve_model(config)).decode(),
    )  # fmt: skip
    nowhere = f"ipc://{tmp_path}/x"
    endpoints = msgspec.json.encode(Endpoints(nowhere, nowhere, nowhere)).decode()
    coordinator = CoordinatorFacts(
        manager.resolve("coordination", config.coordination, config), endpoints
    )
    context: zmq.Context[Any] = zmq.Context()
    with pytest.raises(error, match=text) as caught:
        EngineLoop(
            context,
            spec,
            HandshakeMetadata(addresses=[], rendezvous="file:///met", coordinator=coordinator),
            Heartbeat(),
            None,
        )
    context.destroy(linger=0)  # as `run_engine` does, while the loop is there
    assert caught
