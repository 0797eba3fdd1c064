"""A coordination of another distribution: its companion runs with the engine, its router with the front end."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from tenonry.client.engines import OwnedEngines
from tenonry.interfaces.coordination import RequestRouter
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("forked_children")]
ACME = '''
from pathlib import Path

import zmq

from tenonry.interfaces.coordination import (
    Coordination, EngineCompanion, FleetCompanion, RequestRouter
)


class Companion(EngineCompanion):
    """Writes the names of its calls into a file."""

    def __init__(self, context, spec, endpoints):
        self.index = spec.engine_index
        self.socket = context.socket(zmq.PULL)
        self.file = Path(endpoints)

    def note(self, call):
        with self.file.open("a") as file:
            file.write(call + chr(10))

    def receive(self, starts):
        self.note(f"receive {starts}")

    def on_request(self, tag=0):
        self.note(f"request {tag}")

    def on_step(self, engine):
        self.note(f"step {engine.num_passes}")

    def on_send(self, engine):
        self.note(f"send {engine.request_counts()}")


class Router(RequestRouter):
    def __init__(self, index, num_front_ends):
        self.calls = [f"front end {index} of {num_front_ends}"]

    def connect(self, endpoints):
        self.calls.append(f"connect {Path(endpoints).name}")

    def pick(self, request, candidates, num_requests):
        self.tag = 7
        self.calls.append(f"pick {list(candidates)} {num_requests(candidates[0])}")
        return candidates[-1]

    def sent(self, index):
        self.calls.append(f"sent {index}")

    def close(self):
        self.calls.append("close")


class Fleet(FleetCompanion):
    endpoints = FILE

    def ready(self, socket):
        super().ready(socket)
        with Path(FILE + ".fleet").open("a") as file:
            file.write("ready" + chr(10))


class Acme(Coordination):
    def fleet_companion(self, fleet):
        return Fleet()

    def companion(self, context, spec, metadata, config, keeps_waiting):
        return Companion(context, spec, metadata.coordinator.endpoints)

    def router(self, context, curve, index, num_front_ends):
        return Router(index, num_front_ends)
'''


@pytest.fixture
def calls(site, tmp_path, monkeypatch) -> Path:
    """The file of the companion's calls in engines with the coordination of `acme`."""
    file = tmp_path / "calls"
    text = ACME.replace("FILE", json.dumps(str(file)))
    site.install("acme", modules={"acme_coordination.py": text})
    coordinated = functools.partialmethod(OwnedEngines.__init__, coordinated=True)
    monkeypatch.setattr(OwnedEngines, "__init__", coordinated)
    return file


def test_its_parts_are_called_where_they_belong(calls, serve):
    served = serve(coordination="acme_coordination:Acme")
    assert Path(f"{calls}.fleet").read_text() == "ready\n"
    router = served.engine.engine_core._router
    assert served.run(collect(served.engine, [1], params(), "r")) == tokens([1], params())
    assert router.calls == ["front end 0 of 1", "connect calls", "pick [0] 0", "sent 0"]
    eventually(lambda: calls.read_text().splitlines()[-1].startswith("send (0, 0)"))
    noted = calls.read_text().splitlines()
    assert noted[0] == "send (0, 0)"
    assert noted.count("request 7") == 1
    assert {"receive True", "step 1"} <= {*noted}
    served.engine.shutdown()
    assert router.calls[-1] == "close"


def test_one_engine_has_none(serve):
    served = serve()
    assert type(served.engine.engine_core._router) is RequestRouter
    assert sorted(served.engine.engine_pids) == ["engine 0"]
