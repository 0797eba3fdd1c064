"""The worker `auto`: hands everything to the first of its candidates that serves the model.

Runs in the process the executor chose. This module is light; the candidates import torch in their `load`.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from pydantic import BaseModel

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import ConfigError, ModelError, PluginError, PluginNotFound
from tenonry.info import ModelInfo, PluginRecord, WorkerFacts
from tenonry.interfaces.worker import Worker, WorkerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.plugin.checks import load_options
from tenonry.plugin.kinds import KINDS
from tenonry.plugin.manager import build_plugin, check_capabilities, part_settings, resolve_point
from tenonry.step import ModelRunnerOutput, SchedulerOutput, StepFuture
from tenonry_worker_auto.choice import chosen_by_model
from tenonry_worker_auto.options import AutoOptions, AutoSettings

logger = logging.getLogger("tenonry.worker")


class AutoWorker(Worker):
    """Delegates to the first worker that supports the model. All ranks try the same candidates in the same order.

    `capabilities` and `rpc_methods` are those of any candidate; the chosen one checks its own.
    """

    Options = AutoOptions
    Settings = AutoSettings
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {
            "attention_backend",
            "batch_invariant",
            "drafts",
            "dummy_batch",
            "grammar",
            "kv_cache_dtype",
            "kv_connector",
            "lora",
            "media",
            "pooling",
            "profile",
            "quantization",
            "rounds",
            "save",
            "sleep",
            "tasks",
            "weights",
        }
    )
    rpc_methods: ClassVar[frozenset[str]] = frozenset(
        {
            "chosen_kernels",
            "execute_dummy_batch",
            "load_phases",
            "model_facts",
            "reset_mm_cache",
            "tasks",
        }
    )

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        given = context.options
        self._options = given if isinstance(given, AutoOptions) else AutoOptions()
        candidates = [record for _, record in _installed(self._options.candidates)]
        self._settings = part_settings(candidates, context.config)
        self._built: dict[str, Worker] = {}
        self._chosen: Worker | None = None
        self._origin = ""

    @classmethod
    def check(cls, config: EngineConfig, options: BaseModel) -> None:
        """Check that each option is known to a candidate, with a valid value."""
        chosen = options if isinstance(options, AutoOptions) else AutoOptions()
        extras = chosen.model_extra or {}
        installed = list(_installed(chosen.candidates)) if extras else []
        for key, value in extras.items():
            accepting = [one for one, _ in installed if key in one.Options.model_fields]
            if not accepting:
                known = sorted({name for one, _ in installed for name in one.Options.model_fields})
                raise PluginError(
                    f"options of worker 'auto': unknown {key}; known to its candidates "
                    f"{', '.join(chosen.candidates)}: {', '.join(known)}"
                )
            for one, record in installed:
                if one in accepting:
                    load_options(msgspec.structs.replace(record, options={key: value}), one)

    @classmethod
    def preload(cls, model: ModelInfo, options: BaseModel) -> None:
        """Preload for the first candidate."""
        chosen = options if isinstance(options, AutoOptions) else AutoOptions()
        for worker, record in _installed(chosen_by_model(chosen.candidates, model)):
            worker.preload(model, load_options(record, worker))
            return

    @property
    def chosen(self) -> Worker:
        """The worker that serves the model; asking before `load` is a mistake of the caller."""
        if self._chosen is None:
            raise RuntimeError("worker 'auto' has chosen none: load() comes first")
        return self._chosen

    # ------------------------------------------------------------------ choosing

    def examine(self) -> WorkerFacts:
        refused: dict[str, str] = {}
        for name, record in self._candidates(refused):
            try:
                facts = self._build(name, record).examine()
            except ModelError as error:
                refused[name] = str(error)
                continue
            return msgspec.structs.replace(facts, worker=name, refused=refused)
        raise self._all_refused(refused)

    def load(self) -> None:
        refused: dict[str, str] = {}
        for name, record in self._candidates(refused):
            worker = self._build(name, record)
            try:
                check_capabilities(record, self._settings, self.context.config)
                worker.load()
            except ModelError as error:
                if getattr(
                    error, "for_any_worker", False
                ):  # damaged weights, not a lack of this one
                    raise
                refused[name] = str(error)
            except ConfigError as error:
                raise self._explained(error, name, refused) from error
            else:
                self._choose(name, record, worker, refused)
                return
            del worker  # the error is gone as well, whose traceback holds what was loaded
            self._drop(name)
        raise self._all_refused(refused)

    def _candidates(self, refused: dict[str, str]) -> Iterator[tuple[str, PluginRecord]]:
        """Installed candidates that accept the options, in order; `refused` collects the others.

        Raises PluginNotFound if none is installed.
        """
        missing: list[PluginNotFound] = []
        names = chosen_by_model(self._options.candidates, self.context.model)
        for name in names:
            choice = PluginChoice(name=name, options=self._options.model_extra or {})
            try:
                record = resolve_point(KINDS["worker"], choice)[1]
            except PluginNotFound as error:
                refused[name] = str(error)
                missing.append(error)
                continue
            except PluginError as error:
                refused[name] = str(error)
                continue
            yield name, record
        if len(missing) == len(names):
            raise missing[0]

    def _build(self, name: str, record: PluginRecord) -> Worker:
        """The candidate, built once: `load` reuses the state of `examine`."""
        if name not in self._built:
            context = dataclasses.replace(self.context)
            self._built[name] = build_plugin(record, context)
        return self._built[name]

    def _choose(
        self, name: str, record: PluginRecord, worker: Worker, refused: dict[str, str]
    ) -> None:
        self._chosen = worker
        self._origin = f"{name} ({record.distribution} {record.version})"
        reasons = "; ".join(refused.values())
        if reasons and self.context.rank == 0:
            logger.info("Selected worker '%s': %s", name, reasons)

    def _drop(self, name: str) -> None:
        """Release the resources of a candidate before the next one loads."""
        worker = self._built.pop(name, None)
        if worker is not None:
            worker.shutdown()
        gc.collect()

    def _explained(self, error: ConfigError, name: str, refused: dict[str, str]) -> ConfigError:
        """Add the reason why another candidate than the first was tried to its error."""
        if not refused:
            return error
        return ConfigError(f"{'; '.join(refused.values())}; worker '{name}' would try, but {error}")

    def _all_refused(self, refused: dict[str, str]) -> ModelError:
        reasons = list(dict.fromkeys(refused.values()))
        if len(reasons) == 1:
            return ModelError(reasons[0])
        return ModelError("no worker serves this model: " + "; ".join(reasons))

    # ------------------------------------------------------------------ everything else

    @property
    def steps_in_flight(self) -> int:
        return self.chosen.steps_in_flight

    def open_rendezvous(self, host: str) -> str:
        for name, record in self._candidates({}):
            return self._build(name, record).open_rendezvous(host)
        return super().open_rendezvous(host)

    def kv_cache_groups(self) -> Sequence[KVCacheGroup]:
        return self.chosen.kv_cache_groups()

    def available_memory(self) -> MemoryReport:
        return self.chosen.available_memory()

    def initialize_cache(self, kv_cache: KVCacheConfig) -> None:
        self.chosen.initialize_cache(kv_cache)

    def warm_up(self) -> None:
        self.chosen.warm_up()

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput | StepFuture:
        return self.chosen.execute_model(output)

    def call(
        self, method: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if method == "execute_dummy_batch" and "dummy_batch" not in self.chosen.capabilities:
            return None  # it computes nothing together with other engines
        if method == "tasks":
            return self.tasks()
        if method == "is_sleeping" and "sleep" not in self.chosen.capabilities:
            return False
        return self.chosen.call(method, args, kwargs)

    def execute_dummy_batch(self) -> None:
        """Compute without a request, as the chosen worker does; one without dummy steps has nothing to do."""
        self.call("execute_dummy_batch")

    def model_facts(self) -> Any:
        """Facts of the loaded model, from the chosen worker."""
        return self.chosen.call("model_facts")

    def tasks(self) -> Any:
        """As `EngineInfo.tasks`; none where the chosen worker generates."""
        return self.chosen.call("tasks") if "tasks" in self.chosen.capabilities else {}

    def load_phases(self) -> Any:
        """Durations of its `load`, from the chosen worker."""
        return self.chosen.call("load_phases")

    def chosen_kernels(self) -> Any:
        """Step kernels of the chosen worker; those without any reject the call."""
        return self.chosen.call("chosen_kernels")

    def resolved_plugins(self) -> dict[str, str]:
        return {"worker": self._origin, **self.chosen.resolved_plugins()}

    def check_health(self) -> None:
        if self._chosen is not None:
            self._chosen.check_health()

    def shutdown(self) -> None:
        self._chosen = None
        while self._built:
            self._built.popitem()[1].shutdown()


def _installed(names: Sequence[str]) -> Iterator[tuple[type[Worker], PluginRecord]]:
    """The classes of the installed candidates."""
    for name in names:
        try:
            yield resolve_point(KINDS["worker"], name)
        except PluginNotFound:
            continue
