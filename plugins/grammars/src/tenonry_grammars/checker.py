"""Checks the grammars of requests in helper processes, each grammar once. Front end; any thread."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from concurrent.futures import Future

import msgspec

from tenonry.errors import RequestError
from tenonry.sampling_params import StructuredOutput
from tenonry_grammars.base import GrammarContext
from tenonry_grammars.check_process import Job, Setup, Verdict
from tenonry_helper_pool.pool import HelperPool, HelperUnavailable, LimitExceeded, Limits, Workers
from tenonry_helper_pool.threads import lent_slot
from tenonry_helper_pool.turns import Report

MAX_KNOWN = 4096  # verdicts that are kept
MEMORY_BYTES = 4 << 30
# An eighth of what the worker's thread has: what overflows there, or nearly does, ends this process first.
STACK_BYTES = 2 << 20
SHORT_BYTES = 32 << 10  # of a specification; larger ones are expected to take long
PARAM = "structured_output"


class GrammarChecker:
    """`check` raises RequestError for what the backend cannot serve; `seconds` of processor time are what one
    specification may take.
    """

    def __init__(
        self,
        backend: str | None,
        context: GrammarContext,
        seconds: float,
        name: str = "grammar_check",
        *,
        report: Report | None = None,
        size: int | None = None,
    ) -> None:
        """`name`, `report` and `size`: those of the `HelperPool`."""
        setup = Setup(backend, context.tokenizer_json, context.vocab_size, context.end_ids)
        limits = Limits(seconds=seconds, memory_bytes=MEMORY_BYTES, stack_bytes=STACK_BYTES)
        workers = Workers(
            "grammars",
            "tenonry_grammars.check_process:CheckHandler",
            msgspec.msgpack.encode(setup),
            limits,
        )
        self.pool = HelperPool(name, workers, short_cost=SHORT_BYTES, size=size, report=report)
        self._seconds = seconds
        self._known: OrderedDict[bytes, Future[Verdict]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, spec: StructuredOutput) -> None:
        """Wait for the verdict, where it is not known. Raises RequestError, and QueueFullError where many wait."""
        self._wait(Job(spec))

    def relaxed(self, spec: StructuredOutput) -> tuple[StructuredOutput, tuple[str, ...]]:
        """The specification without the keywords of its schema that cannot be enforced, and pointers of these.

        Raises what `check` does, for a specification that is not served without them either.
        """
        verdict = self._wait(Job(spec, is_lenient=True))
        if verdict.schema is None:
            return spec, ()
        return msgspec.structs.replace(spec, json=verdict.schema), verdict.left_out

    def _wait(self, job: Job) -> Verdict:
        job = Job(msgspec.structs.replace(job.spec, start_after=()), job.is_lenient)
        try:
            text = msgspec.msgpack.encode(job)
        except UnicodeEncodeError:
            raise RequestError(
                "structured_output holds a lone surrogate, which is no Unicode text", PARAM
            ) from None
        key = hashlib.sha256(text).digest()
        with self._lock:
            verdict = self._known.get(key)
            is_mine = verdict is None
            if verdict is None:
                verdict = self._known[key] = Future()
            self._known.move_to_end(key)
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        self.pool.count_lookup(not is_mine)
        if is_mine:
            self._find_out(key, text, verdict)
        with lent_slot():
            found = verdict.result()
        if found.error is not None:
            raise RequestError(f"structured_output cannot be served: {found.error}", PARAM)
        return found

    def shutdown(self) -> None:
        """End the processes; what still waits for one is refused."""
        self.pool.close()

    def _find_out(self, key: bytes, text: bytes, verdict: Future[Verdict]) -> None:
        try:
            found = self._verdict(text)
        except LimitExceeded:  # a busy machine may do better the next time
            self._forget(key)
            found = Verdict(
                f"it was not compiled within {self._seconds:g} s of processor time, took too much memory or is "
                "nested too deeply; simplify it, or raise the IO processor's option grammar_seconds"
            )
        except BaseException as problem:
            self._forget(key)
            verdict.set_exception(problem)
            raise
        verdict.set_result(found)

    def _verdict(self, text: bytes) -> Verdict:
        try:
            answer = self.pool.run(text, cost=len(text))
        except HelperUnavailable as error:
            raise RequestError(f"structured output is not available: {error}", PARAM) from None
        return msgspec.msgpack.decode(answer, type=Verdict)

    def _forget(self, key: bytes) -> None:
        with self._lock:
            self._known.pop(key, None)
