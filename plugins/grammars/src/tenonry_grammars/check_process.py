"""Check of requests' grammars, one specification after another. Helper process.

A separate process, because a specification can be written to exhaust time and memory.
"""

from __future__ import annotations

import msgspec

from tenonry.errors import PluginError
from tenonry.sampling_params import StructuredOutput
from tenonry_grammars.base import GrammarBackend, GrammarContext, GrammarError
from tenonry_grammars.points import find_backend, missing_backend
from tenonry_helper_pool.handler import Handler, HandlerError

MAX_ERROR_CHARS = 600


class Setup(msgspec.Struct, array_like=True):
    """Start parameters of the process: the backend's name, and its tokenizer."""

    backend: str | None
    tokenizer_json: str
    vocab_size: int
    end_ids: tuple[int, ...]


class Job(msgspec.Struct, array_like=True):
    """A specification to check. `is_lenient`: a schema is relaxed first, see `tenonry_grammars.lenient`."""

    spec: StructuredOutput
    is_lenient: bool = False


class Verdict(msgspec.Struct, array_like=True):
    """The answer to a specification: None, or what is wrong with it.

    `schema`: the relaxed one, where keywords were left out, whose pointers `left_out` has.
    """

    error: str | None = None
    schema: str | None = None
    left_out: tuple[str, ...] = ()


class CheckHandler(Handler):
    """Compiles specifications with the chosen backend, and follows them for some tokens."""

    def __init__(self, setup: bytes) -> None:
        given = msgspec.msgpack.decode(setup, type=Setup)
        try:
            self._backend = _build(given)
        except (PluginError, GrammarError) as error:
            raise HandlerError(str(error)) from None
        # Imported before the first fork.
        from tenonry_grammars.lenient import relaxed
        from tenonry_grammars.probing import check_spec

        self._check_spec, self._relaxed = check_spec, relaxed

    def work(self, body: memoryview) -> list[bytes]:
        return [msgspec.msgpack.encode(self._check(body))]

    def _check(self, body: memoryview) -> Verdict:
        try:
            return self._checked(msgspec.msgpack.decode(body, type=Job))
        except GrammarError as error:
            return Verdict(_shortened(str(error)))
        except Exception as error:  # noqa: BLE001 - the request is at fault, and nothing else may end
            return Verdict(_shortened(f"{type(error).__name__}: {error}"))

    def _checked(self, job: Job) -> Verdict:
        spec = job.spec
        if not job.is_lenient or spec.json is None:
            self._check_spec(self._backend, spec)
            return Verdict()
        schema, left_out = self._relaxed(self._backend, spec.json)
        return Verdict(None, schema, left_out) if left_out else Verdict()


def _build(setup: Setup) -> GrammarBackend:
    found = find_backend(setup.backend)
    if found is None:
        raise GrammarError(f"no grammar backend is installed: {missing_backend()}")
    context = GrammarContext(setup.tokenizer_json, setup.vocab_size, setup.end_ids)
    backend: GrammarBackend = found[0](context)
    return backend


def _shortened(text: str) -> str:
    """At most `MAX_ERROR_CHARS` characters, all of which have a UTF-8 form: both may come from the request."""
    if len(text) > MAX_ERROR_CHARS:
        half = MAX_ERROR_CHARS // 2
        text = f"{text[:half]}…{text[-half:]}"
    return text.encode(errors="replace").decode()
