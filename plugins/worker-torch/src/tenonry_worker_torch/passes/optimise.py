"""Driver of the passes of a model: applies them in order, and undoes those that fail. Worker process."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tenonry.errors import ModelError
from tenonry.plugin.checks import load_options
from tenonry_worker_torch.changes import Changes
from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.pass_report import Outcome, PassReport, PassResult
from tenonry_worker_torch.passes.model_pass import NotUsed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tenonry.info import PluginRecord
    from tenonry_worker_torch.forward import Forward
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.model_checks import ModelChecks
    from tenonry_worker_torch.passes.model_pass import ModelPass, PassFacts

    Kind = tuple[type[ModelPass], PluginRecord | None]

logger = logging.getLogger("tenonry.worker")
INVARIANT = "with batch invariance, its kernels compute all layers"


def optimise(model: LoadedModel, passes: Sequence[Kind], facts: PassFacts) -> PassReport:
    """Apply passes in order. `passes`: classes, with their record if they come from another package.

    Ranks that share layers use the same ones. Re-raises exceptions of a required pass.
    """
    return _Optimiser(model, facts).run(passes)


class RunOnce:
    """Replaces the comparisons of a model: a forward pass runs once, and nothing is compared."""

    def __init__(self, checks: ModelChecks) -> None:
        self._checks = checks

    def agrees(self, forward: Forward) -> bool:
        """Return True if it does not raise."""
        self._checks.run_once(forward)
        return True

    still_agrees = agrees


class _Optimiser:
    """One run over the passes of one model. `_deferred`: a pass whose comparison is due, and where it began."""

    def __init__(self, model: LoadedModel, facts: PassFacts) -> None:
        self._model = model
        self._facts = facts
        self._mates = model.parallel.layer_mates
        self._is_alone = self._mates.size == model.parallel.link.num_stages == 1
        self._changes = Changes()
        self._deferred: tuple[ModelPass, PassResult, int] | None = None
        self._has_reference = False

    def run(self, passes: Sequence[Kind]) -> PassReport:
        report = PassReport()
        for kind, record in passes:
            result = PassResult(_named(kind, record))
            report.results.append(result)
            begin = time.perf_counter()
            self._run(kind, record, result)
            result.seconds = time.perf_counter() - begin
        self._settle(is_right=None)
        return report

    def _run(self, kind: type[ModelPass], record: PluginRecord | None, result: PassResult) -> None:
        if self._model.is_invariant and not kind.keeps_invariance:
            result.text = INVARIANT
            return
        begin = len(self._changes)
        each = self._applied(kind, record, result)
        if each is None:
            self._undo(result, begin)
            self._settle(is_right=None)
        elif each.settles_with_next:
            self._deferred = (each, result, begin)
        elif (record is None or self._runs(each, result)) and self._compared(each, result):
            self._settle(is_right=True)
        else:
            self._undo(result, begin)
            self._settle(is_right=None)

    def _applied(
        self, kind: type[ModelPass], record: PluginRecord | None, result: PassResult
    ) -> ModelPass | None:
        """The pass, if it was applied on all ranks."""
        each: ModelPass | None = None
        with self._attempt(kind, result):
            each = kind()
            if record is not None:
                each.options = load_options(record, kind)
            reason = each.why_not(self._model, self._facts)
            if reason is not None:
                raise NotUsed(reason)
        if not self._agreed(result):
            return None
        assert each is not None  # noqa: S101 - agreed
        if kind.changes_module:
            self._keep_reference()
        with self._attempt(kind, result):
            result.text = each.apply(self._model, self._facts, self._changes)
        return each if self._agreed(result) else None

    def _runs(self, each: ModelPass, result: PassResult) -> bool:
        """Return True if the model runs with a pass of another package, on each of several ranks by itself.

        In a comparison, the other ranks would wait for one that raises.
        """
        if self._is_alone:
            return True
        facts = replace(self._facts, checks=RunOnce(self._facts.checks))
        with self._attempt(type(each), result), self._model.parallel.muted():
            each.is_right(self._model, facts)
        return self._agreed(result)

    def _compared(self, each: ModelPass, result: PassResult) -> bool:
        if not self._is_alone:  # other ranks take part, and would wait
            is_right = each.is_right(self._model, self._facts)
        else:
            is_right = False
            with self._attempt(type(each), result):
                is_right = each.is_right(self._model, self._facts)
            if not self._agreed(result):
                return False
        if not self._mates.all_agree(is_right):
            self._differs(result)
            return False
        return True

    def _settle(self, *, is_right: bool | None) -> None:
        """Decide about the deferred pass; None: by a comparison. Then keep all changes so far."""
        if self._deferred is not None:
            each, result, begin = self._deferred
            self._deferred = None
            if is_right is None and not self._compared(each, result):
                self._undo(result, begin)
        self._changes.forget()

    @contextmanager
    def _attempt(self, kind: type[ModelPass], result: PassResult) -> Iterator[None]:
        """Record an exception as the outcome of an optional pass."""
        try:
            result.outcome = Outcome.USED
            yield
        except NotUsed as reason:
            result.outcome, result.text = Outcome.NOT_USED, str(reason)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if not kind.is_optional:
                raise
            result.outcome = Outcome.FAILED
            result.text = f"{type(error).__name__}: {error}"
            logger.debug("model pass '%s'", result.name, exc_info=True)

    def _agreed(self, result: PassResult) -> bool:
        """Return True if the pass is still active on all ranks. The first rank on which it failed reports it."""
        if self._mates.all_agree(result.outcome is Outcome.USED):
            return True
        failed_on = self._mates.first_false(result.outcome is not Outcome.FAILED)
        if result.outcome is Outcome.FAILED and self._mates.rank == failed_on:
            logger.warning("model pass '%s' failed and is left out: %s", result.name, result.text)
        elif result.outcome is Outcome.USED:
            result.outcome, result.text = Outcome.NOT_USED, "another rank leaves it out"
        return False

    def _differs(self, result: PassResult) -> None:
        result.outcome, result.text = Outcome.DIFFERS, "the model's results differ with it"
        if self._mates.rank == 0:
            logger.warning(
                "%s: model pass '%s' changes results and is left out",
                type(self._model.module).__name__,
                result.name,
            )

    def _undo(self, result: PassResult, begin: int) -> None:
        """Raises ModelError where a change cannot be undone: the model is in no known state."""
        try:
            self._changes.undo(begin)
        except Exception as error:
            raise ModelError(
                f"model pass '{result.name}' cannot be undone: {type(error).__name__}: {error}; leave it out of the "
                "worker option model_passes"
            ) from error

    def _keep_reference(self) -> None:
        """Run the model's own code while its weights are as loaded, if comparisons will need it."""
        if not self._has_reference and not isinstance(self._model.forward, FusedForward):
            self._facts.checks.prepare(may_fuse=False)
        self._has_reference = True


def _named(kind: type[ModelPass], record: PluginRecord | None) -> str:
    return kind.name if record is None else f"{kind.name} of {record.distribution or record.name}"
