"""The conformance suite of request checks, without a limit and with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tenonry.messages import EngineCoreRequest
from tenonry.sampling_params import PoolingParams, SamplingParams
from tenonry_testkit.request_check import RequestCheckContract, make_request

from answer_limit.plugin import check

EMBEDDING = SamplingParams(pooling=PoolingParams(task="embed"))


def answers(*lengths: int | None) -> list[EngineCoreRequest]:
    """Requests with these values of `max_tokens`."""
    return [make_request(sampling_params=SamplingParams(max_tokens=each)) for each in lengths]


class TestWithoutLimit(RequestCheckContract):
    request_check = check
    accepted: ClassVar[Sequence[EngineCoreRequest]] = answers(1, 1000, None)


class TestWithLimit(RequestCheckContract):
    request_check = check
    settings: ClassVar[dict[str, Any]] = {"answer_limit": 16}
    accepted: ClassVar[Sequence[EngineCoreRequest]] = [
        *answers(1, 16),
        make_request(sampling_params=EMBEDDING),
    ]
    rejected: ClassVar[Sequence[EngineCoreRequest]] = answers(17, None)
