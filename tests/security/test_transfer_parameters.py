"""`kv_transfer_params` of clients are followed only if an engine of the deployment made them (class R)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tenonry.transport.keys import CurveKeys
from tenonry_kv_connectors.peer.offer import Offer, Sealer

OFFER = Offer(
    engine_id="engine 0",
    peer=("tcp://10.0.0.1:5555",),
    token="a" * 32,
    number=3,
    blocks=7,
    identity="model",
    last="0" * 64,
    made=1_700_000_000.0,
)
HOSTILE = (
    None,
    "",
    -1,
    2**63,
    1e308,
    [],
    {},
    ["tcp://169.254.169.254:80"],
    "tcp://evil.test:1",
    True,
    "\x00",
    "é",
)


@pytest.fixture(scope="module")
def sealer() -> Sealer:
    return Sealer(CurveKeys.generate())


def test_an_offer_of_the_deployment_is_opened(sealer):
    opened = sealer.opened(sealer.sealed(OFFER))
    assert opened is not None
    assert opened.peer == OFFER.peer


def test_an_offer_of_another_deployment_is_not(sealer):
    assert Sealer(CurveKeys.generate()).opened(sealer.sealed(OFFER)) is None


def test_nothing_that_was_changed_is_opened(sealer):
    """One thousand offers with fields changed, added, lost or swapped."""
    draw = random.Random(5)
    valid = sealer.sealed(OFFER)
    for _ in range(1000):
        changed: dict[str, Any] = dict(valid)
        for _ in range(draw.randint(1, 3)):
            field = draw.choice(list(valid))
            kind = draw.randrange(4)
            if kind == 0:
                changed[field] = draw.choice(HOSTILE)
            elif kind == 1:
                changed.pop(field, None)
            elif kind == 2:
                changed[draw.choice(["x", "seal ", "__proto__", "do_remote_decode"])] = 1
            elif isinstance(changed.get(field), str) and changed[field]:
                text = changed[field]
                changed[field] = text[:-1] + chr(ord(text[-1]) ^ 1)
        if changed != valid:
            assert sealer.opened(changed) is None, changed


def test_a_server_without_a_connector_refuses_them(door):
    import json

    body = {"model": "tiny", "prompt": "a", "kv_transfer_params": sealed_elsewhere()}
    status, _, answer = door.send(
        "POST", "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    assert status == 400
    assert json.loads(answer)["error"]["param"] == "kv_transfer_params"


def sealed_elsewhere() -> dict[str, Any]:
    return Sealer(CurveKeys.generate()).sealed(OFFER)
