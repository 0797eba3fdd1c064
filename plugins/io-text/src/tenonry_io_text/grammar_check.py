"""Structured output in the front end: each specification is checked before its request is sent to an engine."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tenonry.errors import RequestError
from tenonry_helper_pool.stats import HelperStats
from tenonry_io_text.codec import Codec, FastCodec
from tenonry_io_text.options import TextSettings

if TYPE_CHECKING:
    from tenonry.config import EngineConfig
    from tenonry.info import ModelInfo
    from tenonry.sampling_params import SamplingParams, StructuredOutput
    from tenonry_grammars.checker import GrammarChecker
    from tenonry_helper_pool.turns import Report

FIELD = "structured_output"
HELPER = "grammar_check"


class GrammarCheck:
    """Grammar check of one model; its processes start with the first specification. `seconds`: time limit per
    specification.

    `report` receives the numbers of its queue.
    """

    def __init__(
        self, config: EngineConfig, model: ModelInfo, seconds: float, report: Report | None
    ) -> None:
        self._backend = config.section(TextSettings).grammar_backend
        self._model = model
        self._seconds = seconds
        self._report = report
        if report is not None:
            report(HelperStats(helper=HELPER))
        self._checker: GrammarChecker | None = None
        self._lock = threading.Lock()

    def check(self, params: SamplingParams, codec: Codec) -> None:
        """Wait for the verdict. Raises RequestError with the path in a schema, or with the package to install."""
        spec = params.structured_output
        if spec is None:
            return
        ends = () if params.ignore_eos else self._model.eos_token_ids
        if not (ends or params.stop_token_ids):
            why = "ignore_eos=True" if params.ignore_eos else "a model without end-of-sequence ids"
            raise RequestError(
                f"structured_output with {why} needs stop_token_ids: a complete output has to end with one",
                FIELD,
            )
        self._opened(codec).check(spec)
        _check_min_tokens(params.min_tokens, spec)

    def relaxed(
        self, spec: StructuredOutput, codec: Codec
    ) -> tuple[StructuredOutput, tuple[str, ...]]:
        """The specification without keywords of its schema that cannot be enforced, and JSON pointers of these.

        Waits for a helper process. Raises RequestError if it is not supported without them either.
        """
        return self._opened(codec).relaxed(spec)

    def _opened(self, codec: Codec) -> GrammarChecker:
        with self._lock:
            if self._checker is None:
                self._checker = self._open(codec)
        return self._checker

    def _open(self, codec: Codec) -> GrammarChecker:
        from tenonry_grammars.base import GrammarContext
        from tenonry_grammars.checker import GrammarChecker
        from tenonry_grammars.points import find_backend, missing_backend

        if not isinstance(codec, FastCodec):
            raise RequestError(
                "structured_output needs a tokenizer.json; this model's tokenizer is written in Python",
                FIELD,
            )
        if find_backend(self._backend) is None:
            raise RequestError(
                f"structured_output needs a grammar backend; install one: {missing_backend()}",
                FIELD,
            )
        context = GrammarContext(
            codec.tokenizer.to_str(), self._model.vocab_size, self._model.eos_token_ids
        )
        return GrammarChecker(self._backend, context, self._seconds, HELPER, report=self._report)

    def shutdown(self) -> None:
        """End the processes."""
        if self._checker is not None:
            self._checker.shutdown()


def _check_min_tokens(min_tokens: int, spec: StructuredOutput) -> None:
    """Raise RequestError if no text of the specification has as many tokens: each is at least one byte."""
    from tenonry_grammars.lengths import longest_text

    if min_tokens and not spec.start_after:
        longest = longest_text(spec)
        if longest is not None and longest < min_tokens:
            raise RequestError(
                f"min_tokens={min_tokens} cannot be met: the longest text that structured_output allows has {longest} "
                f"bytes, and so at most {longest} tokens; lower min_tokens",
                "min_tokens",
            )
