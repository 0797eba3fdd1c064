"""Loads models when requests name them, and unloads idle ones, within a budget of memory. Front end, event loop.

Engines start and stop in threads. A request counts as a user of its model from its arrival to the last byte of its
answer, and a model with users is never unloaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from tenonry.errors import LaunchError, QueueFullError, TenonryError
from tenonry_openai_server.errors import APIError
from tenonry_openai_server.hosting.memory import ModelMemory, gib
from tenonry_openai_server.hosting.model import HostedModel, Status
from tenonry_openai_server.hosting.settings import HostConfig
from tenonry_openai_server.hosting.starter import Starter, too_large

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

logger = logging.getLogger("tenonry.server")
POLL_S = 0.25  # between checks for idle models and dead engines
RETRY_S = 5.0  # after a failure until a request loads the model again
BUSY_RETRY_S = 5.0
T = TypeVar("T")


class ModelHost:
    """All models of a server; `budget`: bytes for those that are loaded.

    It is the engine of the HTTP thread: `listen`, `drain`, `abort_all` and `submit` reach all loaded ones.
    """

    errored = False  # a dead engine affects one model

    def __init__(
        self, models: Sequence[HostedModel], settings: HostConfig, budget: int, starter: Starter
    ) -> None:
        self.models, self.settings, self.budget = models, settings, budget
        self.is_draining = self._is_closed = False
        self._starter = starter
        self._by_name = {name: model for model in models for name in model.spec.names}
        self._threads = ThreadPoolExecutor(2 * len(models) + 1, thread_name_prefix="models")
        self._measuring: dict[HostedModel, asyncio.Future[ModelMemory]] = {}
        self._planning = asyncio.Lock()  # one model at a time makes room
        self._freed = asyncio.Event()  # set when there may be room
        self._watcher: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ start
    def load_pinned(self) -> None:
        """Load the pinned models, in this thread, before requests arrive. Raises TenonryError."""
        for model in self.models:
            if model.spec.is_pinned:
                model.memory = model.memory or self._starter.measure(model)
                model.reserved = model.memory.total
                model.status = Status.LOADING
                model.engine = self._starter.start(model)

    def listen(self) -> None:
        """Serve the pinned models on the running loop, and supervise all from now on."""
        for model in self.models:
            if model.engine is not None:
                model.attach()
        self._watcher = asyncio.create_task(self._watch())

    # ------------------------------------------------------------------ requests
    async def find(self, name: str | None) -> HostedModel:
        """Return the model of a request, by its name or that of an adapter; the first without a name. Raises APIError
        404.
        """
        if not name:
            return self.models[0]
        if name in self._by_name:
            return self._by_name[name]
        for model in self.models:
            if name in model.adapters or name in await loaded_adapters(model):
                return model
        raise APIError(
            404,
            f"the model '{name}' is not served here; served: {', '.join(self._by_name)}",
            param="model",
            code="model_not_found",
        )

    @contextlib.asynccontextmanager
    async def use(self, model: HostedModel) -> AsyncIterator[None]:
        """Wait until the model is loaded, and keep it so. Raises APIError 400 and 503, and QueueFullError."""
        model.users += 1
        try:
            while not self._is_ready(model):
                await self._wait(model)
            yield
        finally:
            model.users -= 1
            model.last_used = time.monotonic()
            self._freed.set()

    def _is_ready(self, model: HostedModel) -> bool:
        """True if the model can be used; otherwise its load has begun. Raises APIError 503."""
        if self.is_draining:
            raise draining()
        if model.is_usable:
            return True
        if model.change is None:
            if model.status is Status.FAILED and time.monotonic() < model.failed_at + RETRY_S:
                message = f"the model '{model.name}' cannot be used: {model.reason}"
                raise APIError(503, message, code="model_failed", retry_after_s=RETRY_S)
            self._begin(model, self._bury(model) if model.engine else self._load(model))
        return False

    async def _wait(self, model: HostedModel) -> None:
        if model.waiting >= self.settings.max_load_queue:
            raise QueueFullError(
                f"{model.waiting} requests wait for the model '{model.name}' to load, and max_load_queue="
                f"{self.settings.max_load_queue}; try again later"
            )
        model.waiting += 1
        try:
            if (change := model.change) is not None:
                # Yields also for a task that has just ended, whose callback runs next; a shield would not.
                await asyncio.wait({change})
                change.result()
        finally:
            model.waiting -= 1

    # ------------------------------------------------------------------ load and unload
    def _begin(self, model: HostedModel, change: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        def ended(task: asyncio.Task[None]) -> None:
            model.change = None
            self._freed.set()
            if not task.cancelled():
                task.exception()  # waiters raise it, if there are any

        model.change = asyncio.create_task(change)
        model.change.add_done_callback(ended)
        return model.change

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread of the host; no client causes it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def _load(self, model: HostedModel) -> None:
        model.status, model.reason = Status.LOADING, ""
        began = time.monotonic()
        try:
            if model.memory is None:  # its files are downloaded; other models load concurrently
                self._measuring[model] = call_in_daemon(self._starter.measure, model)
                model.memory = await self._measuring[model]
            await self._reserve(model, model.memory.total)
            logger.info("loading model %s: %s", model.name, model.memory)
            model.engine = await self._run(self._start, model)
        except APIError:
            model.status = Status.UNLOADED
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, the other models serve on
            self._failed(model, error)
            return
        finally:
            self._measuring.pop(model, None)
        model.attach()
        logger.info("model %s is ready after %.1f s", model.name, time.monotonic() - began)

    def _start(self, model: HostedModel) -> AsyncLLM:
        if self.is_draining:
            raise LaunchError("the server is shutting down")
        return self._starter.start(model)

    def _failed(self, model: HostedModel, error: Exception) -> None:
        is_known = isinstance(error, TenonryError)
        reason = " ".join(str(error).split()) if is_known else "internal error; the log has more"
        logger.error("model %s: %s", model.name, reason, exc_info=None if is_known else error)
        model.reset()
        model.reserved = 0
        model.fail(reason)

    async def _reserve(self, model: HostedModel, need: int) -> None:
        """Reserve `need` bytes, as soon as no other model makes room. Raises APIError."""
        deadline = asyncio.get_running_loop().time() + self.settings.model_wait_timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._planning.acquire()
        except TimeoutError:
            raise self._busy(model, need) from None
        try:
            await self._make_room(model, need, deadline)
            model.reserved = need
        finally:
            self._planning.release()

    async def _make_room(self, model: HostedModel, need: int, deadline: float) -> None:
        """Unload models until `need` bytes fit, least recently used first. Raises APIError."""
        pinned = sum(each.reserved for each in self.models if each.spec.is_pinned)
        if pinned + need > self.budget and model.memory is not None:
            message = too_large(model.name, model.memory, self.budget, pinned)
            raise APIError(400, message, param="model", code="model_too_large")
        while self._is_short(need):
            if self.is_draining:
                raise draining()
            self._freed.clear()
            victim = least_recently_used(self.models)
            if victim is not None:
                logger.info("unloading model %s for %s", victim.name, model.name)
                await asyncio.wait({self._begin(victim, self._unload(victim))})
                continue
            try:
                async with asyncio.timeout_at(deadline):
                    await self._freed.wait()
            except TimeoutError:
                raise self._busy(model, need) from None

    def _is_short(self, need: int) -> bool:
        loaded = [each.reserved for each in self.models if each.reserved]
        most = self.settings.max_loaded_models
        return sum(loaded) + need > self.budget or (bool(most) and len(loaded) >= most)

    def _busy(self, model: HostedModel, need: int) -> APIError:
        used = ", ".join(
            f"{each.name} {gib(each.reserved)}" for each in self.models if each.reserved
        )
        return APIError(
            503,
            f"there is no room for the model '{model.name}', which needs {gib(need)}: requests use {used} of "
            f"{gib(self.budget)}; try again later",
            param="model",
            code="models_busy",
            retry_after_s=BUSY_RETRY_S,
        )

    async def _unload(self, model: HostedModel) -> None:
        engine = model.engine
        model.status = Status.DRAINING
        model.reset()
        if engine is not None:
            await self._run(engine.shutdown)
        model.reserved = 0
        model.status = Status.UNLOADED
        logger.info("unloaded model %s", model.name)

    async def _bury(self, model: HostedModel) -> None:
        """Unload a model whose engine has died for good."""
        logger.error("the engine of model %s failed", model.name)
        await self._unload(model)
        model.fail("its engine has died; the log has more")

    async def _watch(self) -> None:
        """Unload idle models, and those with a dead engine."""
        idle_s = self.settings.model_idle_timeout or float("inf")
        while not self.is_draining:
            await asyncio.sleep(POLL_S)
            for model in self.models:
                if model.change is not None or model.engine is None:
                    continue
                if model.engine.errored:
                    self._begin(model, self._bury(model))
                elif model.is_evictable and time.monotonic() >= model.last_used + idle_s:
                    logger.info("model %s was idle for %g s", model.name, idle_s)
                    self._begin(model, self._unload(model))

    # ------------------------------------------------------------------ all engines
    @property
    def _engines(self) -> list[AsyncLLM]:
        return [model.engine for model in self.models if model.engine is not None]

    @property
    def num_unfinished_requests(self) -> int:
        return sum(engine.num_unfinished_requests for engine in self._engines)

    def submit(self, method: str, *args: Any) -> None:
        """Pass a record of this process on to the stat loggers of the first loaded model."""
        for engine in self._engines[:1]:
            engine.submit(method, *args)

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - as AsyncLLM
        """Reject new requests, end loads, and wait for running requests; False if some still run after `timeout`."""
        self.is_draining = True
        self._freed.set()
        for measuring in self._measuring.values():
            if not measuring.done():
                measuring.set_exception(draining())
        self._end_starts()
        engines = [engine.drain(timeout) for engine in self._engines]
        return all(await asyncio.gather(self._changes_end(timeout), *engines))

    async def _changes_end(self, timeout: float) -> bool:  # noqa: ASYNC109 - as drain
        """Wait at most `timeout` seconds for models that load or unload. True if no requests remain with them."""
        changes = [model.change for model in self.models if model.change is not None]
        if changes:
            await asyncio.wait(changes, timeout=timeout)
        return True

    async def abort_all(self) -> None:
        """End every request with reason "abort"."""
        await asyncio.gather(*(engine.abort_all() for engine in self._engines))

    def _end_starts(self) -> None:
        for model in self.models:
            if model.engine is None and model.engines is not None:
                self._threads.submit(model.engines.shutdown)

    def shutdown(self) -> None:
        """Stop all engines. After the event loop has ended, from the main thread. Idempotent. A download is left."""
        if self._is_closed:
            return
        self._is_closed = True
        self.is_draining = True
        self._end_starts()
        for engine in self._engines:
            self._threads.submit(engine.shutdown)
        self._threads.shutdown()


def draining() -> APIError:
    """Error of a request for a server that shuts down."""
    return APIError(503, "the server is shutting down", code="draining", retry_after_s=5.0)


def call_in_daemon(function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """Call a function in a thread that the end of the process does not wait for. Its result is dropped if the future is
    done by then.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_value: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            set_value(value)

    def run() -> None:
        done: tuple[Callable[[Any], None], Any]
        try:
            done = (future.set_result, function(*args))
        except BaseException as error:  # noqa: BLE001  the caller raises it
            done = (future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, *done)

    threading.Thread(target=run, name="models-measure", daemon=True).start()
    return future


def least_recently_used(models: Sequence[HostedModel]) -> HostedModel | None:
    """Model to unload first, among the permitted ones."""
    return min(
        (model for model in models if model.is_evictable and model.change is None),
        key=lambda model: model.last_used,
        default=None,
    )


async def loaded_adapters(model: HostedModel) -> Sequence[str]:
    """Names of the adapters that a loaded model has."""
    if model.engine is not None and model.is_usable:
        with contextlib.suppress(TenonryError):  # its engine has just died
            return tuple(await model.state.adapters.all(model.engine))
    return ()
