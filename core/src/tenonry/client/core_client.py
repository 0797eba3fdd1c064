"""The front end's link to its engines: one socket towards all of them, one back; requests, outputs, calls, deaths.

Lives in the process of a front end; all methods run on the event loop's thread, or before there is one, but for
`engine_died`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import zmq

from tenonry.client.coordinator_link import CoordinatorLink
from tenonry.client.load_balancer import LoadBalancer
from tenonry.config import EngineConfig
from tenonry.errors import EngineDeadError, EngineGenerateError, RequestError, WireError
from tenonry.messages import (
    CoordinatorReady,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFacts,
    RequestType,
    UtilityCall,
    UtilityResult,
)
from tenonry.serial import Decoder, Encoder
from tenonry.sockets import (
    IDENTITY_BYTES,
    CurveKeys,
    close_all,
    endpoint,
    engine_identity,
    engine_index_of,
    make_socket,
)

logger = logging.getLogger(__name__)


class EngineLink:
    """One engine as this front end sees it.

    `requests`: handles that run there. `leaving`: it gets no new ones. `dead`: why it is, or nothing.
    """

    __slots__ = ("calls", "dead", "epoch", "identity", "index", "leaving", "requests")

    def __init__(self, facts: EngineFacts) -> None:
        self.index, self.epoch, self.identity = facts.index, facts.epoch, engine_identity(facts.index)
        self.requests: set[int] = set()
        self.calls: dict[int, asyncio.Future[Any]] = {}
        self.leaving, self.dead = False, ""


class CoreClient:
    """The sockets to all engines. `on_death(engine index, reason)` is called once for an engine that says it dies.

    `frames_dropped` counts what could not be decoded or was of another epoch. `dead`: why there is no engine left.
    """

    def __init__(
        self, config: EngineConfig, on_death: Callable[[int, str], None], curve: CurveKeys | None = None, index: int = 0
    ) -> None:
        self._on_death, self._curve, self.frames_dropped = on_death, curve, 0
        self.dead: str | None = None
        self.engines: dict[int, EngineLink] = {}
        self._by_handle: dict[int, EngineLink] = {}
        self._heard: dict[zmq.Socket[bytes], set[int]] = {}
        self._pinned = config.data_parallel_rank
        self._balancer = LoadBalancer(config.load_balancing, config.seed + index)
        self._closing = False
        self._call_ids = itertools.count(1)
        self._encoder = Encoder()
        self._decoder: Decoder[EngineCoreOutputs] = Decoder(EngineCoreOutputs)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._input: zmq.Socket[bytes] | None = None
        self._output: zmq.Socket[bytes] | None = None
        self._coordinator = CoordinatorLink(self._context, curve)
        self.num_clients = 1

    # ------------------------------------------------------------------ engines
    def bind(self, input_address: str, output_address: str) -> tuple[str, str]:
        """Be found at these addresses, too; returns them as they are bound."""
        found = []
        for name, kind, address in (("_input", zmq.ROUTER, input_address), ("_output", zmq.PULL, output_address)):
            socket = getattr(self, name)
            if socket is None:
                socket = make_socket(self._context, kind, address, bind=True, curve=self._curve)
                setattr(self, name, socket)
                self._heard[socket] = set()
            else:
                socket.bind(address)
            found.append(endpoint(socket))
        return found[0], found[1]

    def add_engines(self, facts: Iterable[EngineFacts], coordinator: CoordinatorReady | None = None) -> None:
        """Engines that are ready; requests may go to them from now on."""
        for one in facts:
            self.engines[one.index] = EngineLink(one)
        if coordinator is not None:
            self._coordinator.connect(coordinator)

    def unheard(self) -> set[int]:
        """Engines that have not connected both sockets yet. Each says one word on each when it does; `receive` hears
        the one on the way back.
        """
        source, sink = self._sockets()
        while source.poll(0):
            self._heard[source].add(engine_index_of(source.recv_multipart()[0]))
        return set(self.engines) - (self._heard[source] & self._heard[sink])

    def _sockets(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        if self._input is None or self._output is None:
            raise EngineDeadError("the engines are not connected")
        return self._input, self._output

    def retire(self, indexes: Iterable[int], leaving: bool = True) -> None:
        """Engines that get no new requests; with `leaving=False`, that do again."""
        for index in indexes:
            if index in self.engines:
                self.engines[index].leaving = leaving

    def engine_died(self, index: int, reason: str) -> None:
        """From any thread: nothing goes there from now on. `remove_engine` follows."""
        link = self.engines.get(index)
        if link is not None:
            link.leaving, link.dead = True, reason
            if all(other.dead for other in list(self.engines.values())):
                self.dead = reason

    def num_requests(self, index: int) -> int:
        """Our requests that an engine still has; none if it is gone."""
        return len(self.engines[index].requests) if index in self.engines else 0

    def remove_engine(self, index: int, reason: str) -> list[int]:
        """Forget an engine; returns the handles that ran there. Calls that wait for it fail."""
        for heard in self._heard.values():
            heard.discard(index)
        link = self.engines.pop(index, None)
        if link is None:
            return []
        if not self.engines:
            self.dead = self.dead or reason
        _fail(link, EngineDeadError(reason))
        for handle in link.requests:
            self._by_handle.pop(handle, None)
        return sorted(link.requests)

    def load(self, index: int) -> int:
        """Requests of an engine: as published, or our own times the number of front ends, whichever is more."""
        return max(len(self.engines[index].requests) * self.num_clients, self._coordinator.loads.get(index, 0))

    # ------------------------------------------------------------------ to the engines
    def add_requests(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Send the completions of one request, all to one engine, which shares their prompt.

        Raises EngineDeadError, or RequestError for a field that no message can carry and an engine that is not there.
        """
        self._check_alive()
        self._coordinator.refresh()
        link = self._choose(requests[0])
        for request in requests:
            request.epoch, request.current_wave = link.epoch, self._coordinator.wave
            try:
                frames = self._encoder.encode(request)
            except (TypeError, ValueError, OverflowError) as error:
                raise RequestError(f"request {request.request_id} cannot be sent: {error}") from error
            self._by_handle[request.handle] = link
            link.requests.add(request.handle)
            self._send(link, RequestType.ADD, request.handle.to_bytes(8, "little"), *frames)
        self._coordinator.wake(link.index)

    def _choose(self, request: EngineCoreRequest) -> EngineLink:
        able = sorted(index for index, link in self.engines.items() if not (link.leaving or link.dead))
        rank = request.data_parallel_rank
        if rank in self.engines and self.engines[rank].dead:
            raise EngineDeadError(f"the engine of data_parallel_rank={rank} died: {self.engines[rank].dead}")
        if rank is not None and rank not in able:
            what = f"data_parallel_rank={rank}: there is no such engine; there are {', '.join(map(str, able))}"
            raise RequestError(what, "data_parallel_rank")
        if rank is not None:
            return self.engines[rank]
        if not able:
            raise EngineDeadError("no engine takes requests: those that ran died, or leave")
        return self.engines[self._balancer.pick(request, able, self.load)]

    def abort_requests(self, handles: Iterable[int]) -> None:
        """Tell engines to end requests; a dead engine has ended them already."""
        by_engine: dict[EngineLink, list[int]] = {}
        for handle in handles:
            link = self._by_handle.pop(handle, None)
            if link is not None:
                link.requests.discard(handle)
                by_engine.setdefault(link, []).append(handle)
        for link, theirs in by_engine.items():
            with contextlib.suppress(EngineDeadError):  # one that is gone keeps no other from hearing it
                self._send(link, RequestType.ABORT, *self._encoder.encode(theirs))

    async def call(self, method: str, *args: Any) -> list[Any]:
        """Call a method of the allow-list on every engine; the results in the engines' order.

        Raises EngineGenerateError (the engine's own words) or EngineDeadError.
        """
        self._check_alive()
        links = [self.engines[index] for index in sorted(self.engines)]
        return list(await asyncio.gather(*(self._call(link, method, args) for link in links)))

    async def _call(self, link: EngineLink, method: str, args: Sequence[Any]) -> Any:
        call_id = next(self._call_ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        link.calls[call_id] = future
        try:
            self._send(link, RequestType.UTILITY, *self._encoder.encode(UtilityCall(call_id, method, list(args))))
            return await future
        finally:
            link.calls.pop(call_id, None)

    def _check_alive(self) -> None:
        if self.dead is not None or self._closing:
            raise EngineDeadError(f"the engine is gone: {self.dead or 'it was shut down'}")

    def _send(self, link: EngineLink, kind: RequestType, *frames: Any) -> None:
        self._check_alive()
        try:
            self._sockets()[0].send_multipart([link.identity, kind.value, *frames], zmq.NOBLOCK, copy=len(frames) < 4)
        except zmq.ZMQError as error:
            raise EngineDeadError(f"engine {link.index} cannot be reached: {error.strerror}") from error

    # ------------------------------------------------------------------ from the engines
    @property
    def output_fd(self) -> int:
        """Readable when `receive` may have something (edge-triggered: drain it)."""
        return int(self._sockets()[1].getsockopt(zmq.FD))

    def receive(self) -> EngineCoreOutputs | None:
        """The next outputs, or None when there are none now. Bad frames and late ones are dropped and counted."""
        while True:
            try:
                frames = self._output.recv_multipart(zmq.NOBLOCK)  # type: ignore[union-attr]  # the hot path
            except zmq.Again:
                return None
            outputs = self._decode(frames)
            if outputs is not None:
                return outputs

    def _decode(self, frames: list[bytes]) -> EngineCoreOutputs | None:
        if len(frames[0]) == IDENTITY_BYTES:  # the first word of an engine
            self._heard[self._sockets()[1]].add(engine_index_of(frames[0]))
            return None
        try:
            outputs = self._decoder.decode(frames)
        except WireError as error:
            self.frames_dropped += 1
            logger.warning("dropped a frame on the output socket: %s", error)
            return None
        link = self.engines.get(outputs.engine_index)
        if link is None or outputs.epoch != link.epoch:
            self.frames_dropped += 1
            return None
        for finished in outputs.finished:
            if self._by_handle.pop(finished.handle, None) is not None:
                link.requests.discard(finished.handle)
        if outputs.utility is not None:
            _answer(link, outputs.utility)
        if outputs.dead is not None and not self._closing:
            self._on_death(link.index, f"engine {link.index} stopped: {outputs.dead}")
        return outputs

    def fail_calls(self, error: Exception) -> None:
        """Every call that waits for an answer raises."""
        for link in self.engines.values():
            _fail(link, error)

    def close(self) -> None:
        """Remove the sockets. Idempotent."""
        self._closing = True
        close_all(self._input, self._output)
        self._coordinator.close()
        self._context.destroy(linger=0)


def _fail(link: EngineLink, error: Exception) -> None:
    for future in list(link.calls.values()):
        if not future.done():
            future.set_exception(error)


def _answer(link: EngineLink, result: UtilityResult) -> None:
    future = link.calls.get(result.call_id)
    if future is None or future.done():
        return
    if result.failure is not None:
        future.set_exception(EngineGenerateError(result.failure))
    else:
        future.set_result(result.result)
