"""The front end's link to its engines: one socket to all of them, one back; requests, outputs, calls, deaths.

All methods but `engine_died` run on the event loop's thread, or before there is a loop. Front end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import zmq

from tenonry.client.codec import EngineCodec, EngineLink
from tenonry.client.ports import EnginePorts
from tenonry.config import EngineConfig
from tenonry.errors import EngineDeadError, EngineGenerateError, RequestError, WireError
from tenonry.interfaces.coordination import RequestRouter
from tenonry.interfaces.launcher import FIRST_STANDBY, Death
from tenonry.messages import (
    ADD_HEADER,
    CoordinatorFacts,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFacts,
    RequestType,
    UtilityCall,
    UtilityResult,
)
from tenonry.plugin.manager import build_coordination
from tenonry.plugin.plan import PluginPlan
from tenonry.transport.keys import CurveKeys
from tenonry.transport.serial import Decoder, Encoder
from tenonry.transport.sockets import PORT_BYTES, Context, receive_frames

logger = logging.getLogger(__name__)


class CoreClient:
    """The sockets to all engines. `on_death(engine index, death)` is called once for an engine that reports its end.

    `frames_dropped`: undecodable frames and those of another epoch; `faults`: engines ended by a plugin, by its name.
    `dead`: reason why no request can be served. `leaving`: engines without new requests. `newcomers`: ready engines
    without an index yet; calls of all engines include them, except spare ones. `recovers`: dead engines restart; until
    then they are `awaited`, also by requests that no other engine can serve.
    """

    def __init__(
        self,
        config: EngineConfig,
        plan: PluginPlan,
        on_death: Callable[[int, Death], None],
        curve: CurveKeys | None = None,
        *,
        recovers: bool = False,
        index: int = 0,
        num_clients: int = 1,
    ) -> None:
        self.on_death = on_death
        self.frames_dropped = 0
        self.faults: Counter[str] = Counter()
        self.dead: str | None = None
        self.engines: dict[int, EngineLink] = {}
        self.leaving: set[int] = set()
        self.newcomers: dict[int, EngineLink] = {}
        self.recovers = recovers
        self.awaited: set[int] = set()
        self._calls: dict[int, tuple[EngineLink, asyncio.Future[Any]]] = {}  # by number
        self._call_ids = itertools.count(1)
        self.codec = EngineCodec(config, plan)
        self._encoder = Encoder()
        self._decoder: Decoder[EngineCoreOutputs] = Decoder(EngineCoreOutputs)
        self._context: Context = zmq.Context()
        self.ports = EnginePorts(self._context, curve)
        self._router = RequestRouter()
        self._make_router: Callable[[], RequestRouter] = lambda: build_coordination(config, plan)[
            0
        ].router(self._context, curve, index, num_clients)

    # ------------------------------------------------------------------ engines
    def bind(self, input_address: str, output_address: str) -> tuple[str, str]:
        """Bind additional addresses; returns them as bound. Raises EngineDeadError after `close`.

        Socket files serve one start; TCP ports remain, so that later engines connect there as well.
        """
        self.check_alive()
        return self.ports.bind(input_address, output_address)

    def expect(self, facts: Iterable[EngineFacts]) -> None:
        """Register ready engines that will receive indexes."""
        for engine in facts:
            self.newcomers[engine.index] = EngineLink(engine)

    def drop_newcomer(self, index: int, reason: str) -> None:
        """Remove a newcomer without an index. Its pending calls fail."""
        link = self.newcomers.pop(index, None)
        if link is not None:
            self._forget(link, reason)

    def take_over(
        self, indexes: Iterable[int], coordinator: CoordinatorFacts | None
    ) -> dict[int, dict[int, EngineCoreRequest]]:
        """Assign these indexes to newcomers, which receive new requests from now on; returns the requests of the
        previous engines by index. Pending calls of the previous engines fail.
        """
        lost = {}
        for index in self.newcomers.keys() & indexes:
            if link := self.engines.pop(index, None):
                lost[index] = link.requests
                self._abort(link, list(link.requests))
                self.ports.forget(link.identity)  # its listener remains until the abort has arrived
                self.fail_calls(EngineDeadError(f"engine {index} was replaced"), link)
            self.engines[index] = self.newcomers.pop(index)
        if type(self._router) is RequestRouter and (coordinator or len(self.engines) > 1):
            self._router = self._make_router()
        if coordinator:
            self._router.connect(coordinator.endpoints)
        return lost

    def unconnected(self) -> set[int]:
        """Engines that have not connected both sockets yet. Each sends a first frame on both; `receive` handles the one
        on the return socket. Raises EngineDeadError after `close`.
        """
        self.check_alive()
        connected = self.ports.connected()
        return {link.index for link in self.links if link.identity not in connected}

    @property
    def links(self) -> list[EngineLink]:
        """Engines by index, followed by newcomers."""
        return [*(self.engines[index] for index in sorted(self.engines)), *self.newcomers.values()]

    def engine_died(self, index: int, death: Death) -> None:
        """Stop sending to an engine, from any thread. `remove_engine` follows."""
        link = self.engines.get(index)
        if link:
            link.dead = death
            if self.recovers:
                self.awaited.add(index)
            elif all(other.dead for other in list(self.engines.values())):
                self.dead = str(death)

    def remove_engine(self, index: int, reason: str) -> dict[int, EngineCoreRequest]:
        """Remove an engine; returns its requests by handle. Its pending calls fail."""
        self.leaving.discard(index)
        link = self.engines.pop(index, None)
        if link is None:
            return {}
        if not self.engines and not self.awaited:
            self.dead = self.dead or reason
        self._forget(link, reason)
        return link.requests

    def _forget(self, link: EngineLink, reason: str) -> None:
        self.ports.forget(link.identity)
        self.ports.unbind_unused()
        self.fail_calls(EngineDeadError(reason), link)

    # ------------------------------------------------------------------ to the engines
    def send_requests(self, index: int, requests: Sequence[EngineCoreRequest]) -> None:
        """Send the completions of one request to one engine, so that they share their prompt.

        Raises EngineDeadError, or RequestError for a field that no message can carry.
        """
        for request in requests:
            self._add(self.engines[index], request)

    def _add(self, link: EngineLink, request: EngineCoreRequest) -> None:
        header = ADD_HEADER.pack(request.handle, link.epoch, self._router.tag)
        frames = self.codec.encode(request, link)
        try:
            self._send(link, RequestType.ADD, header, *frames)
        except EngineDeadError:
            if not self.recovers:  # otherwise resumed with the other requests of this engine
                raise
        self._router.sent(link.index)

    @property
    def able(self) -> list[int]:
        """Engines that accept new requests."""
        return [
            index
            for index, link in sorted(self.engines.items())
            if not link.dead and index not in self.leaving and index not in self.awaited
        ]

    def choose(self, request: EngineCoreRequest) -> int | None:
        """Return the engine for a request; None while the required one restarts. Raises EngineDeadError without a
        capable engine, RequestError for an unknown index.
        """
        self.check_alive()
        able = self.able
        rank = request.data_parallel_rank
        if rank in self.awaited or (rank is None and not able and self.awaited):
            return None
        if rank in self.engines and self.engines[rank].dead:
            raise EngineDeadError(
                f"the engine of data_parallel_rank={rank} failed: {self.engines[rank].dead}"
            )
        if not able:
            raise EngineDeadError(
                "no engine accepts requests: all have failed or are being removed"
            )
        if rank is not None and rank not in able:
            raise RequestError(
                f"data_parallel_rank={rank}: there is no such engine; the ranks here are {', '.join(map(str, able))}",
                "data_parallel_rank",
            )
        return self._router.pick(
            request,
            able if rank is None else [rank],
            lambda index: len(self.engines[index].requests),
        )

    def abort_requests(self, handles: Sequence[int]) -> None:
        """End requests in their engines; those of a dead engine have ended already."""
        for link in self.engines.values():
            theirs = [handle for handle in handles if link.requests.pop(handle, None)]
            if theirs:
                self._abort(link, theirs)

    def _abort(self, link: EngineLink, handles: list[int]) -> None:
        with contextlib.suppress(EngineDeadError):  # continue with the other engines
            frames = self._encoder.encode(handles)
            self._send(link, RequestType.ABORT, *frames)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of the allow-list on every engine; results are in engine order.

        Raises EngineGenerateError (the engine's own message) or EngineDeadError.
        """
        if missing := self.awaited - self.engines.keys() - self.newcomers.keys():
            raise EngineDeadError(f"engines {sorted(missing)} failed and are restarting")
        links = [link for link in self.links if link.index < FIRST_STANDBY]
        calls = [self.call_link(link, method, *args, **kwargs) for link in links]
        return await asyncio.gather(*calls)

    async def call_engine(self, index: int, method: str, *args: Any) -> Any:
        """Call a method on one engine, preferring a newcomer of this index."""
        link = self.newcomers.get(index) or self.engines.get(index)
        if link is None:
            raise EngineDeadError(f"engine {index} is gone")
        return await self.call_link(link, method, *args)

    async def call_link(self, link: EngineLink, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method on the engine of a link. Also raises EngineDeadError if the engine left before this runs."""
        if link not in self.links:
            raise EngineDeadError(f"engine {link.index} is gone")
        call_id = next(self._call_ids)
        future = asyncio.get_running_loop().create_future()
        self._calls[call_id] = link, future
        try:
            frames = self._encoder.encode(UtilityCall(call_id, method, list(args), kwargs))
            self._send(link, RequestType.UTILITY, *frames)
            return await future
        finally:
            del self._calls[call_id]

    def has_calls(self, index: int) -> bool:
        """True while a call of this engine is pending."""
        return any(link.index == index for link, _ in self._calls.values())

    def check_alive(self) -> None:
        """Raise EngineDeadError if no request can be served."""
        if self.dead is not None:
            raise EngineDeadError(f"the engine has stopped: {self.dead}")

    def _send(self, link: EngineLink, kind: RequestType, *frames: Any) -> None:
        try:
            self.ports.send(link.identity, (kind.value, *frames))
        except zmq.ZMQError as error:
            raise EngineDeadError(
                f"engine {link.index} cannot be reached: {error.strerror}"
            ) from error

    # ------------------------------------------------------------------ from the engines
    @property
    def output_fd(self) -> int:
        """Descriptor that is readable when `receive` may return something (edge-triggered: drain it)."""
        return int(self.ports.sockets[1].getsockopt(zmq.FD))

    def receive(self) -> EngineCoreOutputs | None:
        """Return the next outputs, or None. Bad and late frames are dropped and counted."""
        _, source = self.ports.sockets
        while (frames := receive_frames(source)) is not None:
            outputs = self._decode(frames)
            if outputs:
                return outputs
        return None

    def _decode(self, frames: list[bytes]) -> EngineCoreOutputs | None:
        if len(frames[0]) == PORT_BYTES:  # first frame of an engine
            self.ports.returning.add(frames[0])
            return None
        try:
            outputs = self._decoder.decode(frames)
        except WireError as error:
            self.frames_dropped += 1
            logger.warning("ignored an invalid frame on the output socket: %s", error)
            return None
        link = self.engines.get(outputs.engine_index)
        is_newcomer = link is None or outputs.epoch != link.epoch
        if is_newcomer:
            link = self.newcomers.get(outputs.engine_index)
        if link is None or outputs.epoch != link.epoch:
            self.frames_dropped += 1
            return None
        if outputs.utility is not None:
            self._answer(outputs.utility)
        if is_newcomer:  # without requests
            return None
        if outputs.finished:
            self.codec.ended(link, outputs, self._add)
        if outputs.dead:
            self.faults[outputs.blamed] += 1
            reason = f"engine {link.index} stopped: {outputs.dead}"
            self.on_death(link.index, Death(reason, epoch=link.epoch))
        return outputs

    def _answer(self, result: UtilityResult) -> None:
        _, future = self._calls.get(result.call_id, (None, None))
        if future is None or future.done():
            return
        if result.failure is not None:
            future.set_exception(EngineGenerateError(result.failure))
        else:
            future.set_result(result.result)

    def fail_calls(self, error: Exception, engine: EngineLink | None = None) -> None:
        """Fail all pending calls of this engine, or of all engines."""
        for link, future in self._calls.values():
            if engine in {None, link} and not future.done():
                future.set_exception(error)

    def close(self) -> None:
        """Remove the sockets. Idempotent."""
        self.dead = self.dead or "it was shut down"
        # At interpreter exit the context does not know them any more and would wait.
        self.ports.close()
        self._router.close()
        self._context.destroy(linger=0)
