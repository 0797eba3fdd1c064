"""Who may come in: the room of one front end, and its share where there are several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tenonry.client.gate import Gate
from tenonry.config import EngineConfig
from tenonry.errors import QueueFullError, RequestError


def make_gate(num_engines: int = 1, num_clients: int = 1) -> tuple[Gate, Any, list[str]]:
    """A gate for 8 sequences per engine and 4 that wait; what it knows of engines; the reasons that loggers heard."""

    class Outputs:
        num_completions = 0

    config = EngineConfig(model="m", max_num_seqs=8, max_num_queued_reqs=4)
    reasons: list[str] = []
    stats = SimpleNamespace(submit=lambda _, reason: reasons.append(reason))
    info = SimpleNamespace(engine_indexes=tuple(range(num_engines)))
    engines: Any = SimpleNamespace(stats=stats, info=info, count=num_clients)
    return Gate(config, Outputs(), engines), info, reasons  # type: ignore[arg-type]


def test_what_never_has_room_is_told_not_to_come_back():
    gate, _, reasons = make_gate()
    with (
        pytest.raises(RequestError, match="n=13: there is room for 12 sequences in all") as refused,
        gate.holding(13),
    ):
        raise AssertionError
    assert refused.value.param == "n"
    assert reasons == ["invalid"]


@pytest.mark.parametrize(
    ("num_engines", "num_clients", "room"), [(1, 1, 12), (2, 1, 20), (2, 2, 10), (2, 3, 7)]
)
def test_each_front_end_has_its_share_of_the_room(num_engines, num_clients, room):
    gate, info, reasons = make_gate(num_engines, num_clients)
    with gate.holding(room):
        with pytest.raises(QueueFullError, match=f"there is room for {room}"), gate.holding(1):
            raise AssertionError
        info.engine_indexes += (num_engines,)
        with gate.holding(1):
            pass
    assert reasons == ["queue_full"]
