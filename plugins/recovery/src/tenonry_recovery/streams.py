"""Sends the requests of engines that died again, so that streams go on. Front end, event loop.

A request is sent with the tokens that were delivered: its engine takes them as output, so that limits, penalties,
seeds, grammars and log-probabilities are those of an undisturbed run. It goes to a sibling at once, or waits for the
engine that is started again. A suspect waits for that in any case, and is tried there before others are let in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from tenonry.errors import EngineDeadError, EngineGenerateError, ErrorCode, RequestError
from tenonry.interfaces.launcher import Death
from tenonry.interfaces.recovery import EngineClient, EngineState, OpenCompletion, OpenStreams
from tenonry.messages import EngineCoreRequest
from tenonry.stats import RecoveryStats, StatRecord
from tenonry_recovery.crash_attribution import CRASHES, MARGIN, CrashAttribution, Lost

logger = logging.getLogger("tenonry.recovery")
POLL_S = 0.005


class StreamRecovery:
    """The requests of engines that died."""

    def __init__(
        self,
        client: EngineClient,
        streams: OpenStreams,
        record: Callable[[StatRecord], None],
        max_num_seqs: int,
    ) -> None:
        self.client = client
        self._streams = streams
        self._record = record
        self.attribution = CrashAttribution(max_num_seqs)
        self._to_try: dict[str, list[EngineCoreRequest]] = {}  # suspects, by request id
        self.on_trial = ""  # the id of the request
        self._held: list[
            Sequence[EngineCoreRequest]
        ] = []  # the completions of one request together

    # ------------------------------------------------------------------ requests
    def hold(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Keep the completions of one request until `release`."""
        self._held.append(requests)

    def release(self) -> None:
        """Send the requests that are held and have not ended, in order of arrival; they may be held again."""
        held = sorted(self._held, key=lambda requests: requests[0].handle)
        self._held = []
        for requests in held:
            if still_open := [each for each in requests if self._completion(each)]:
                self._streams.send(still_open)

    def fail_suspects(self, reason: str) -> None:
        """No engine is awaited in which they could be tried."""
        for request_id, requests in self._to_try.items():
            self._fail(requests, _poisoned(request_id, reason))
        self._to_try = {}

    def _lost(self, requests: Mapping[int, EngineCoreRequest]) -> list[Lost]:
        """Open requests with what was delivered, by stream, in order of arrival."""
        by_id: dict[str, Lost] = {}
        for handle in sorted(requests):
            completion = self._streams.completion(handle)
            if completion is None:
                continue
            stream = completion.stream
            lost = by_id.setdefault(stream.request_id, Lost(stream))
            lost.is_known_to_run |= completion.is_scheduled
            again = msgspec.structs.replace(
                requests[handle], output_token_ids=completion.delivered_ids.tolist()
            )
            lost.requests.append(again)
        return list(by_id.values())

    def move(self, index: int, requests: Mapping[int, EngineCoreRequest]) -> None:
        """Move requests to an engine that replaced their own; they resume there."""
        num_requests = 0
        num_tokens = 0
        for each in self._lost(requests):
            try:
                _check_own(each, "was replaced")
                self.client.send_requests(index, each.requests)
            except (EngineDeadError, RequestError) as error:
                self._fail(each.requests, error)
            else:
                num_requests += 1
                num_tokens += each.num_tokens
        if requests:
            self._count(index, num_requests, num_tokens)

    def resume(self, index: int, death: Death, requests: Mapping[int, EngineCoreRequest]) -> None:
        """Resume requests of a dead engine in another one, or after its restart."""
        lost = self._lost(requests)
        suspects = self.attribution.crashed(
            lost, self._streams.is_open, has_stepped=death.began_step
        )
        num_requests = 0
        num_tokens = 0
        for each in lost:
            is_suspect = each.stream.request_id in suspects
            error = self._refusal(index, death, each, is_suspect=is_suspect)
            if error is not None:
                self._fail(each.requests, error)
                continue
            num_requests += 1
            num_tokens += each.num_tokens
            if is_suspect:
                self._to_try[each.stream.request_id] = each.requests
            else:
                self._streams.send(each.requests)
        if requests:
            self._count(index, num_requests, num_tokens)

    def _count(self, index: int, num_requests: int, num_tokens: int) -> None:
        numbers = RecoveryStats(requests_continued=num_requests, tokens_recomputed=num_tokens)
        record = StatRecord(engine_index=index, time=time.monotonic(), recovery=numbers)
        self._record(record)
        logger.warning(
            "engine %d: resumed %d requests, recomputing %d tokens", index, num_requests, num_tokens
        )

    def _refusal(
        self, index: int, death: Death, lost: Lost, *, is_suspect: bool
    ) -> Exception | None:
        """Error of a request that cannot be resumed; None if it can."""
        try:
            _check_own(lost, f"died: {death}")
        except EngineDeadError as error:
            return error
        request_id = lost.stream.request_id
        if request_id == self.on_trial and death.began_step:
            return _poisoned(request_id, death, was_alone=True)
        if is_suspect and index not in self.client.awaited:  # nowhere to try it
            return _poisoned(request_id, death)
        return None

    def _fail(self, requests: Sequence[EngineCoreRequest], error: Exception) -> None:
        self._streams.fail([request.handle for request in requests], error)

    # ------------------------------------------------------------------ suspects
    async def try_suspects(self, indexes: Sequence[int]) -> None:
        """Try each suspect in its requested engine, others in the lowest of these, which is tried last."""
        for index in sorted(indexes, reverse=True):
            ranks = {index, None} if index == min(indexes) else {index}
            await self._try_suspects(index, ranks)

    async def _try_suspects(self, index: int, ranks: Collection[int | None]) -> None:
        """One after the other, each until it has passed the place of the last crash. They stay there then."""
        for request_id, requests in list(self._to_try.items()):
            link = self.client.engines.get(index)
            if link is None or link.dead:
                return
            if requests[0].data_parallel_rank in ranks:
                del self._to_try[request_id]
                self.on_trial = request_id
                await self._try(index, link, requests)
                self.on_trial = ""

    async def _try(
        self, index: int, link: EngineState, requests: Sequence[EngineCoreRequest]
    ) -> None:
        alive = [each for each in map(self._completion, requests) if each is not None]
        if not alive:
            return
        stream = alive[0].stream
        enough = stream.num_generated + MARGIN
        logger.warning(
            "request %s was running during %d consecutive crashes; retrying it in isolation",
            self.on_trial,
            CRASHES,
        )
        self.client.send_requests(index, [each for each in requests if self._completion(each)])
        while not link.dead and stream.num_generated < enough:
            if not any(map(self._completion, requests)):
                return
            await asyncio.sleep(POLL_S)
        while link.dead and self.client.engines.get(index) is link:  # noqa: ASYNC110 - until it was judged
            await asyncio.sleep(POLL_S)

    def _completion(self, request: EngineCoreRequest) -> OpenCompletion | None:
        return self._streams.completion(request.handle)


def _check_own(lost: Lost, what: str) -> None:
    """Raise EngineDeadError for a request that can resume in no other engine."""
    if lost.requests[0].kv_transfer_params is not None:
        raise EngineDeadError(
            f"the engine of this request {what}; its K/V came from another engine, which gives it once "
            "(kv_transfer_params)"
        )


def _poisoned(request_id: str, reason: object, *, was_alone: bool = False) -> EngineGenerateError:
    more = " and one when it ran alone" if was_alone else ""
    return EngineGenerateError(
        f"engines died while it ran, {CRASHES} in a row{more}, so it is not tried again; the last one: {reason}",
        ErrorCode.ENGINE_CRASH,
        request_id=request_id,
    )
