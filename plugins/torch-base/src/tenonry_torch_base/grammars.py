"""Grammar backend of a worker, opened on first use, and grammars compiled concurrently with steps.

Worker process. Grammars are kept, so that rows with the same specification share one.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tenonry_grammars.base import GrammarContext, GrammarError
from tenonry_grammars.points import GRAMMARS, find_backend, missing_backend
from tenonry_helper_pool.background import Background
from tenonry_torch_base.settings import WorkerSettings

if TYPE_CHECKING:
    from tenonry.info import ModelInfo
    from tenonry.interfaces.worker import WorkerContext
    from tenonry.sampling_params import StructuredOutput
    from tenonry_grammars.base import Grammar, GrammarBackend

MAX_GRAMMARS = 64
MAX_COMPILING = 2  # concurrently: a slow grammar, and quick ones
NICE = 10  # of slow compilations; not higher, since they share locks of interpreter and allocator with the steps
STACK_BYTES = 16 << 20  # more than in the check of a grammar


class GrammarStore:
    """Compiled grammars. `compiled` returns a future immediately; it raises GrammarError if compilation fails."""

    def __init__(self, found: type[Any] | None, model: ModelInfo, vocab_size: int) -> None:
        self._found = found
        self._model = model
        self._vocab_size = vocab_size
        self._grammars: OrderedDict[StructuredOutput, Future[Grammar]] = OrderedDict()
        self._building = threading.Lock()
        self._background = Background("grammars", STACK_BYTES, NICE)
        self._threads: ThreadPoolExecutor | None = None

    @cached_property
    def backend(self) -> GrammarBackend:
        """Built on first use, in the thread that compiles. Raises GrammarError."""
        if self._found is None:
            raise GrammarError(f"no grammar backend is installed: {missing_backend()}")
        model = self._model
        folder = Path(model.tokenizer_path or model.path)
        context = GrammarContext(tokenizer_json(folder), self._vocab_size, model.eos_token_ids)
        backend: GrammarBackend = self._found(context)
        return backend

    def build(self) -> GrammarBackend:
        """The backend, ready. Raises GrammarError."""
        with self._building:
            return self.backend

    def compiled(self, spec: StructuredOutput) -> Future[Grammar]:
        """The grammar of a specification, now or later; the oldest of many are dropped."""
        key = msgspec.structs.replace(spec, start_after=())
        future = self._grammars.get(key)
        if future is None or is_spent(future):
            if self._threads is None:
                self._threads = ThreadPoolExecutor(MAX_COMPILING, thread_name_prefix="grammars")
            work = partial(self._compile, key)
            future = self._threads.submit(self._background.run, work)
            self._grammars[key] = future
            if len(self._grammars) > MAX_GRAMMARS:
                self._grammars.popitem(last=False)
        self._grammars.move_to_end(key)
        return future

    def shutdown(self) -> None:
        """Compile no more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, spec: StructuredOutput) -> Grammar:
        return self.build().compile(spec)


def is_spent(future: Future[Grammar]) -> bool:
    """Return True if new rows need the grammar recompiled."""
    return future.done() and not future.exception() and future.result().is_spent


def open_grammars(
    context: WorkerContext, vocab_size: int, resolved: dict[str, str]
) -> GrammarStore:
    """Open the store of a sampling rank; `resolved` (kind → name) receives the backend, if there is one.

    A configured backend is built now: llguidance holds the interpreter's lock for a second to read a tokenizer of 150
    000 tokens, which would delay all requests. Raises PluginError for an unusable one.
    """
    found = find_backend(context.config.section(WorkerSettings).grammar_backend)
    if found is not None:
        resolved[GRAMMARS.kind] = found[1]
    store = GrammarStore(found[0] if found else None, context.model, vocab_size)
    if context.config.section(WorkerSettings).grammar_backend is not None:
        with contextlib.suppress(GrammarError):  # requests that need it receive the reason
            store.build()
    return store


def tokenizer_json(folder: Path) -> str:
    """Return the tokenizer of a model's folder as text. Raises GrammarError for one written in Python."""
    path = folder / "tokenizer.json"
    if path.exists():
        return path.read_text("utf-8")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # anything can go wrong in there; the cause is named
        raise GrammarError(f"no tokenizer could be opened in {folder}: {error}") from error
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise GrammarError(
            f"the tokenizer is a {type(tokenizer).__name__}, written in Python; structured output needs a "
            "tokenizer.json"
        )
    text: str = fast.to_str()
    return text
