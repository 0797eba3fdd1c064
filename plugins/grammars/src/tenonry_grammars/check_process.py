"""What a checking process does: it checks specifications for a front end, one after another.

A process of its own, because a specification can be made to take all the time and memory there is: it is killed, by an
alarm of its own, when one takes more processor time than its limit. It reads messages from standard input and ends
with it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import IO, TypeVar

import msgspec

from tenonry.errors import PluginError
from tenonry.sampling_params import StructuredOutput
from tenonry_grammars.background import Background
from tenonry_grammars.base import GrammarBackend, GrammarContext, GrammarError
from tenonry_grammars.points import find_backend, missing_backend

LENGTH = struct.Struct("<I")
MAX_MEMORY = 4 << 30
MAX_ERROR_CHARS = 600
# An eighth of what the worker's thread has: what overflows there, or nearly does, ends this process first.
STACK_BYTES = 2 << 20
NICE = 19  # the least share of a processor: nothing waits for this process but the request
MAX_WALL = 15  # times the limit: on a busy machine processor time passes slowly
T = TypeVar("T")


class Setup(msgspec.Struct, array_like=True):
    """First message to the process: the backend's name and its tokenizer; `seconds` of processor time for one check."""

    backend: str | None
    tokenizer_json: str
    vocab_size: int
    end_ids: tuple[int, ...]
    seconds: float


class Verdict(msgspec.Struct, array_like=True):
    """The answer to the setup and to each specification: None, or what is wrong with it."""

    error: str | None = None


def write_message(stream: IO[bytes], message: msgspec.Struct) -> None:
    """One message, its length in front."""
    body = msgspec.msgpack.encode(message)
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


def read_message(stream: IO[bytes], kind: type[T]) -> T | None:
    """The next message, None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = stream.read(length)
    if len(body) < length:
        return None
    return msgspec.msgpack.decode(body, type=kind)


def prepare() -> Callable[[], None] | None:
    """Read the setup and build the backend; what answers from then on, None where that failed. In the main thread."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to the whole group: the front end decides
    # Without a buffer, which would be written once more when the process ends; an answer fits into a pipe at once.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(
        sys.stderr.fileno(), sys.stdout.fileno()
    )  # a library that prints does not spoil an answer
    setup = read_message(sys.stdin.buffer, Setup)
    if setup is None:
        return None
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
    with contextlib.suppress(BrokenPipeError):
        try:
            backend = _build(setup)
        except (PluginError, GrammarError) as error:
            write_message(answers, Verdict(str(error)))
            return None
        write_message(answers, Verdict())
    return partial(_answer_all, backend, setup.seconds, answers)


def _answer_all(backend: GrammarBackend, seconds: float, answers: IO[bytes]) -> None:
    apart = Background("grammar-check", STACK_BYTES, NICE)
    with contextlib.suppress(BrokenPipeError):
        while (spec := read_message(sys.stdin.buffer, StructuredOutput)) is not None:
            _limit(seconds)
            verdict = apart.run(partial(_check, backend, spec))
            _limit(0)
            write_message(answers, verdict)


def _limit(seconds: float) -> None:
    """End this process, wherever it is then, after so much processor time; 0 takes the limit away."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, MAX_WALL * seconds)


def _build(setup: Setup) -> GrammarBackend:
    found = find_backend(setup.backend)
    if found is None:
        raise GrammarError(f"no grammar backend is installed: {missing_backend()}")
    context = GrammarContext(setup.tokenizer_json, setup.vocab_size, setup.end_ids)
    backend: GrammarBackend = found[0](context)
    return backend


def _check(backend: GrammarBackend, spec: StructuredOutput) -> Verdict:
    from tenonry_grammars.probing import check_spec

    try:
        check_spec(backend, spec)
    except GrammarError as error:
        return Verdict(_shortened(str(error)))
    except Exception as error:  # noqa: BLE001 - the request is at fault, and nothing else may end
        return Verdict(_shortened(f"{type(error).__name__}: {error}"))
    return Verdict()


def _shortened(text: str) -> str:
    """At most `MAX_ERROR_CHARS` characters, all of which have a UTF-8 form: both may come from the request."""
    if len(text) > MAX_ERROR_CHARS:
        half = MAX_ERROR_CHARS // 2
        text = f"{text[:half]}…{text[-half:]}"
    return text.encode(errors="replace").decode()
