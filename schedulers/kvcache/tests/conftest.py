"""A block manager with the columns that a scheduler would have around it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import Any

import numpy as np
import pytest

from tenonry.config import EngineConfig
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup
from tenonry.messages import EngineCoreRequest
from tenonry.outputs import FinishReason
from tenonry.request import Request, RequestStatus
from tenonry.sampling_params import SamplingParams
from tenonry_kvcache import KVCacheManager
from tenonry_scheduling import Match, Rows
from tenonry_testkit.fakes.worker_options import fake_group

SIZE = 4


class ManagerDriver:
    """Drives the manager as a scheduler does: requests enter rows, compute tokens, and leave."""

    def __init__(
        self,
        num_blocks: int = 32,
        *,
        rows: int = 6,
        groups: Sequence[str] = ("full",),
        windows: Sequence[int] = (),
        connector: Any = None,
        state_slots: int = 0,
        snapshot_interval: int = 2 * SIZE,
        **config: Any,
    ) -> None:
        self.max_model_len = 64
        self.now = 0.0
        self.config = EngineConfig(model="none", max_num_seqs=rows, **config)
        self.kv_cache = KVCacheConfig(
            num_blocks=num_blocks,
            block_size=SIZE,
            groups=tuple(starmap(fake_group, enumerate(windows)))
            or tuple(KVCacheGroup(layers=(str(i),), kind=kind) for i, kind in enumerate(groups)),
            max_model_len=self.max_model_len,
            num_state_slots=state_slots,
        )
        self.rows = Rows(rows, self.max_model_len)
        self.blocks = KVCacheManager(
            SchedulerContext(
                self.config,
                self.kv_cache,
                max_model_len=self.max_model_len,
                clock=lambda: self.now,
                kv_connector=connector,
            ),
            seed="test",
            snapshot_interval=snapshot_interval,
        )
        self.blocks.attach(self.rows)
        self.count = 0

    def request(
        self, tokens: Sequence[int], *, prompt_logprobs: int | None = None, **fields: Any
    ) -> Request:
        self.count += 1
        source = EngineCoreRequest(
            handle=self.count,
            request_id=str(self.count),
            prompt_token_ids=np.array(tokens, np.int32),
            sampling_params=SamplingParams(max_tokens=None, prompt_logprobs=prompt_logprobs),
            **fields,
        )
        return Request(source, self.count, 0.0, self.max_model_len)

    def enter(self, request: Request) -> tuple[int, Match | None]:
        """Return a row and the cached prefix of the request."""
        row = self.rows.enter(request)
        match = self.blocks.match(request, row)
        if match is not None:
            self.rows.num_computed[row] = match.num_computed
        return row, match

    def compute(self, row: int, num_tokens: int) -> bool:
        """Schedule `num_tokens` more; False if there are no blocks."""
        end = self.rows.num_computed[row] + num_tokens
        one = np.array([row])
        if self.blocks.grow(one, np.array([end], np.int32)) is None:
            return False
        self.rows.num_computed[row] = end
        self.rows.announced[row] = True
        self.blocks.register(one, np.array([end], np.int32))
        return True

    def append(self, row: int, token: int) -> None:
        """One token was sampled."""
        self.rows.token_ids[row, self.rows.num_tokens[row]] = token
        self.rows.num_tokens[row] += 1

    def leave(
        self,
        row: int,
        *,
        finished: bool = True,
        drop: bool = False,
        reason: FinishReason = FinishReason.LENGTH,
    ) -> dict[str, Any] | None:
        request = self.rows.request(row)
        self.rows.save(row)
        if finished:
            request.status, request.finish_reason = RequestStatus.FINISHED, reason
        known = min(request.num_tokens, int(self.rows.num_computed[row]))
        parameters = self.blocks.free(request, row, num_known=known, drop=drop)
        self.rows.leave(row)
        if finished:
            self.blocks.forget(request)
        return parameters

    def run(self, tokens: Sequence[int], **fields: Any) -> int:
        """A whole life; returns the tokens that were found in the cache."""
        row, match = self.enter(self.request(tokens, **fields))
        assert match is not None
        assert self.compute(row, len(tokens) - match.num_computed)
        self.leave(row)
        return match.num_computed

    def table(self, row: int) -> list[int]:
        return self.blocks.table(row)[0].tolist()


@pytest.fixture
def make_driver() -> type[ManagerDriver]:
    return ManagerDriver
