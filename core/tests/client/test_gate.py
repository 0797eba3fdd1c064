"""Who may come in: the room of one front end, and its share where there are several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tenonry.client.gate import Gate
from tenonry.config import EngineConfig
from tenonry.errors import QueueFullError


@pytest.mark.parametrize(("num_engines", "num_clients", "room"), [(1, 1, 12), (2, 1, 20), (2, 2, 10), (2, 3, 7)])
def test_each_front_end_has_its_share_of_the_room(num_engines, num_clients, room):
    class Outputs:
        num_completions = 0

    config = EngineConfig(model="m", max_num_seqs=8, max_num_queued_reqs=4)
    stats = SimpleNamespace(submit=lambda *_: None)
    info = SimpleNamespace(engine_indexes=tuple(range(num_engines)))
    engines: Any = SimpleNamespace(stats=stats, info=info, count=num_clients)
    gate = Gate(config, Outputs(), engines)  # type: ignore[arg-type]
    with gate.holding(room):
        with pytest.raises(QueueFullError, match=f"there is room for {room}"), gate.holding(1):
            raise AssertionError
        info.engine_indexes += (num_engines,)
        with gate.holding(1):
            pass
