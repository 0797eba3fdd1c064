"""All workloads of one model on all engines, interleaved: starts, then runs, then servers. The measuring process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tenonry.errors import TenonryError
from tenonry_bench.layouts import alternated
from tenonry_bench.load import Load
from tenonry_bench.models.engines import OURS, Engine
from tenonry_bench.models.results import Result, Run, Values, results_of
from tenonry_bench.models.servers import SERVED_NAME, started_server
from tenonry_bench.models.session import Session, prepare
from tenonry_bench.own_server import ServerProcess
from tenonry_bench.sse import Client, Endpoint
from tenonry_bench.workload import WARM_UP_RUN, WorkloadFile

START_S = 600.0
WARM_UP_TOKENS = 4
PAUSE_S = 1.0  # between interleaved runs: threads of OpenMP spin for up to 0.2 s after the last one
# Of a short run before each timed one: a virtual machine may take back pages that a process did not read for a second,
# and then a small model's run is mostly a measure of how soon it gives them.
WAKE_UP_LENGTH = 32


class ModelBench:
    """Measures one model. `failures`: engine to its last output; a peer that failed gets no further requests."""

    def __init__(
        self, name: str, engines: Sequence[Engine], workloads: WorkloadFile, options: dict[str, Any]
    ) -> None:
        self._name = name
        self._engines = list(engines)
        self._workloads = workloads
        self._options = options
        self.failures: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.memory_gib: dict[str, float] = {}

    def measure(
        self, names: Sequence[str], runs: int, show_progress: Callable[[str], None]
    ) -> list[Result]:
        """The workloads by kind, `runs` times each. Raises TenonryError if tenonry itself fails."""
        for engine in [engine for engine in self._engines if engine.prepares]:
            with self._dropping(engine):
                prepare(engine, self._options)
        measured: dict[str, Values] = {}
        for name in self._of_kind(names, "startup"):
            show_progress(f"{self._name}, {name}: processes start")
            measured[name] = self._starts(name, runs)
        offline = self._of_kind(names, "offline")
        if offline:
            measured |= self._offline(offline, runs, show_progress)
        for name in self._of_kind(names, "served"):
            show_progress(f"{self._name}, {name}: servers")
            measured[name] = asyncio.run(self._served(name, runs))
        return [
            result
            for name in names
            for result in results_of(self._name, name, self._workloads.get(name), measured[name])
        ]

    def _of_kind(self, names: Sequence[str], kind: str) -> list[str]:
        return [name for name in names if self._workloads.get(name).kind == kind]

    @contextlib.contextmanager
    def _dropping(self, engine: Engine) -> Iterator[None]:
        """Skip a peer from here on if it fails; tenonry's own failure ends the benchmark."""
        try:
            yield
        except (TenonryError, OSError) as error:
            if engine.name == OURS:
                raise
            self.failures.setdefault(engine.name, str(error))
            self._engines = [each for each in self._engines if each.name != engine.name]

    def _starts(self, name: str, runs: int) -> Values:
        """Time from process start to the answer of one request, which is sent before the model is loaded."""
        values: Values = {}
        out_len = self._workloads.get(name).out_len
        for run in range(runs):
            prompts = self._workloads.prompts(name, run)
            for engine in alternated(self._engines, run):
                with self._dropping(engine), Session(engine, self._options) as session:
                    session.ask(prompts, out_len)
                    session.ready()
                    session.answer()
                    took = time.perf_counter() - session.started
                    values.setdefault(engine.name, []).append(Run(wall=took))
        return values

    def _offline(
        self, names: Sequence[str], runs: int, show_progress: Callable[[str], None]
    ) -> dict[str, Values]:
        """Every engine loads once; then each run of a workload goes through all of them."""
        measured: dict[str, Values] = {name: {} for name in names}
        with contextlib.ExitStack() as stack:
            sessions: dict[str, Session] = {}
            for engine in list(self._engines):
                show_progress(f"{self._name}: {engine.name} loads")
                with self._dropping(engine):
                    session = stack.enter_context(Session(engine, self._options))
                    session.ready()
                    sessions[engine.name] = session
                    self.versions[engine.name] = session.version
            for name in names:
                show_progress(f"{self._name}, {name}: runs")
                measured[name] = self._workload(name, runs, sessions)
            for engine in self._engines:
                self.memory_gib[engine.name] = round(sessions[engine.name].memory_gib(), 2)
        return measured

    def _workload(self, name: str, runs: int, sessions: dict[str, Session]) -> Values:
        values: Values = {}
        out_len = self._workloads.get(name).out_len
        for run in [WARM_UP_RUN, *range(runs)]:
            prompts = self._workloads.prompts(name, run)
            for engine in alternated(self._engines, run):
                time.sleep(PAUSE_S)
                with self._dropping(engine):
                    is_warm_up = run == WARM_UP_RUN
                    session = sessions[engine.name]
                    session.run([prompts[0][WAKE_UP_LENGTH - 1 :: -1]], WARM_UP_TOKENS)
                    wanted = min(out_len, WARM_UP_TOKENS) if is_warm_up else out_len
                    times = session.run(prompts, wanted)
                    if not is_warm_up:
                        done = Run(wall=times.wall, ttft=times.ttft)
                        values.setdefault(engine.name, []).append(done)
        return values

    async def _served(self, name: str, runs: int) -> Values:
        """Servers that run concurrently, with load on each in turn."""
        values: Values = {}
        with contextlib.ExitStack() as stack:
            servers: dict[str, ServerProcess] = {}
            ready_s: dict[str, float] = {}
            for engine in [engine for engine in self._engines if engine.serves]:
                with self._dropping(engine):
                    server = started_server(engine, self._options)
                    stack.callback(server.stop)
                    _, ready_s[engine.name] = await server.ready(START_S)
                    servers[engine.name] = server
            for run in [WARM_UP_RUN, *range(runs)]:
                for engine in alternated([each for each in self._engines if each.serves], run):
                    await asyncio.sleep(PAUSE_S)
                    with self._dropping(engine):
                        done = await self._load(name, run, servers[engine.name])
                        if run != WARM_UP_RUN:
                            done.ready_s = ready_s[engine.name]
                            values.setdefault(engine.name, []).append(done)
        return values

    async def _load(self, name: str, run: int, server: ServerProcess) -> Run:
        workload = self._workloads.get(name)
        load = Load(
            Client(Endpoint.parse(server.base_url), None),
            SERVED_NAME,
            workload.concurrency,
            None,
            timeout_s=START_S,
            seed=self._workloads.seed,
        )
        done = await load.run(self._workloads.prompts(name, run), workload.out_len)
        if len(done.good) < len(done.records):
            raise TenonryError(f"{name}: {done.errors()}")
        return Run(wall=done.wall_s, ttft=[record.ttft_s for record in done.good])
