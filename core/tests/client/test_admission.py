"""The capacity of one front end, and its share where there are several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tenonry.client.admission import Admission
from tenonry.config import EngineConfig
from tenonry.errors import QueueFullError, RequestError


def make_admission(num_engines: int = 1, num_clients: int = 1) -> tuple[Admission, Any, list[str]]:
    """Admission of 8 sequences per engine and 4 in the queue; the engines' info; the reasons given to loggers."""

    class Outputs:
        num_completions = 0

    config = EngineConfig(model="m", max_num_seqs=8, max_num_queued_reqs=4)
    reasons: list[str] = []
    stats = SimpleNamespace(submit=lambda _, reason: reasons.append(reason))
    info = SimpleNamespace(engine_indexes=tuple(range(num_engines)))
    engines: Any = SimpleNamespace(stats=stats, info=info, count=num_clients)
    return Admission(config, Outputs(), engines), info, reasons  # type: ignore[arg-type]


def test_a_request_above_the_whole_capacity_is_invalid():
    admission, _, reasons = make_admission()
    with (
        pytest.raises(RequestError, match="n=13: the capacity is 12 sequences in all") as refused,
        admission.holding(13),
    ):
        raise AssertionError
    assert refused.value.param == "n"
    assert reasons == ["invalid"]


@pytest.mark.parametrize(
    ("num_engines", "num_clients", "capacity"), [(1, 1, 12), (2, 1, 20), (2, 2, 10), (2, 3, 7)]
)
def test_each_front_end_has_its_share_of_the_capacity(num_engines, num_clients, capacity):
    admission, info, reasons = make_admission(num_engines, num_clients)
    with admission.holding(capacity):
        with (
            pytest.raises(QueueFullError, match=f"the capacity is {capacity}"),
            admission.holding(1),
        ):
            raise AssertionError
        info.engine_indexes += (num_engines,)
        with admission.holding(1):
            pass
    assert reasons == ["queue_full"]
