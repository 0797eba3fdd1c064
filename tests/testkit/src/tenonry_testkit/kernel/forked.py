"""Children of a test process that are forks of it, for tests of their behaviour: nothing is imported again.

Fresh interpreters are covered by the tests of `tenonry.launch`, of executors, of signals, and by the commands of the
README. Test process and its children.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from setproctitle import getproctitle

from tenonry.launch import child, spawn


class ForkedChild(spawn.FreshProcess):
    """A Popen whose child runs `tenonry.launch.child` without a new interpreter, with the same pipes, signals and
    waiting.
    """

    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: bool,
        pass_fds: Iterable[int],
        cwd: Any,
        env: Mapping[str, str],
        startupinfo: Any,
        creationflags: int,
        shell: bool,
        p2cread: int,
        *others: Any,
    ) -> None:
        assert args[1:] == ["-P", "-m", child.__name__]
        self.pid = fork(lambda: run_child(p2cread, env), [p2cread, *pass_fds])
        self._child_created = True
        os.close(p2cread)


def tenonry(words: list[str]) -> int:
    """Program of `python -m tenonry WORDS`."""
    from tenonry.cli import main

    return main(words)


class ForkedCommand(subprocess.Popen[Any]):
    """A Popen of `python -m tenonry WORDS` as a fork, like the engines and servers that it starts.

    A subclass for another program sets the beginning of its commands, and the function that a fork runs with the
    remaining words.
    """

    beginning = (sys.executable, "-m", "tenonry")
    program = staticmethod(tenonry)

    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: bool,
        pass_fds: Iterable[int],
        cwd: Any,
        env: Mapping[str, str] | None,
        startupinfo: Any,
        creationflags: int,
        shell: bool,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        *others: Any,
    ) -> None:
        size = len(self.beginning)
        assert tuple(args[:size]) == self.beginning
        files = [
            standard if given == -1 else given
            for standard, given in enumerate((p2cread, c2pwrite, errwrite))
        ]
        environment = dict(os.environ if env is None else env)
        program, words = self.program, list(args[size:])
        self.pid = fork(lambda: run_command(program, words, files, cwd, environment), files)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def fork(run: Callable[[], int], kept: Iterable[int]) -> int:
    """Fork; returns the pid. The fork holds the standard files and those in `kept`, ends with the status `run()`."""
    # Until the fork has reset its parent's handlers, which would act for the parent.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads: none of ours holds a lock
        pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        return pid
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        forget_handlers()
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        gc.freeze()  # a collection would copy the memory of the test process
        gc.unfreeze = _nothing  # so would a later collection
        close_all_but(kept)
        open_standard_files()
        logging.root.handlers.clear()  # their files are closed, and the numbers are reused
        renew_thread_pool()
        status = run()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # their reader may be gone; the lower part of the stack belongs to the parent
            os._exit(status)


def forget_handlers() -> None:
    """Restore the signal handlers of a new interpreter: the system's, except for SIGINT."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def renew_thread_pool() -> None:
    """Recreate torch's thread pool after a fork: torch does so in the first call that uses it, which is not safe in
    concurrent threads, such as those that load a model.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(torch.get_num_threads())


def open_standard_files() -> None:
    """Reopen the standard files: those that captured the test process's output had other numbers, which are closed."""
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, closefd=False, encoding="utf-8")  # noqa: SIM115 - open to the end
        for number, mode in enumerate("rww")
    )


def close_all_but(kept: Iterable[int]) -> None:
    """Close the files above the standard ones: a pipe held open by a fork would not end with its owner.

    Their numbers stay in use: objects of the test process that live on in the fork close them one day.
    """
    open_now = {int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.exists()}
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in open_now - {0, 1, 2, nothing, *kept}:
        os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


def run_child(stdin: int, environment: Mapping[str, str]) -> int:
    """Run like a fresh interpreter."""
    os.dup2(stdin, 0)
    os.close(stdin)
    begin(environment)
    return child.main()


def run_command(
    program: Callable[[list[str]], int],
    words: list[str],
    files: list[int],
    folder: Any,
    environment: Mapping[str, str],
) -> int:
    """Run like a fresh interpreter in `folder`, in its own session; `files`: the standard ones."""
    os.setsid()
    for standard, given in enumerate(files):
        os.dup2(given, standard)
    for given in {*files} - {0, 1, 2}:
        os.close(given)
    open_standard_files()
    os.chdir(folder or ".")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `-m` does it
    begin(environment)
    sys.argv = ["tenonry", *words]
    # As in an interpreter without any test.
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
    spawn.FreshProcess = ForkedChild  # type: ignore[misc]
    return program(words)


def begin(environment: Mapping[str, str]) -> None:
    """Use only `environment`."""
    getproctitle()  # locates the title next to the environment, before that is replaced
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None


def fork_children(monkeypatch: Any) -> None:
    """Fork the children of `tenonry.launch` in this process from now on."""
    monkeypatch.setattr(spawn, "FreshProcess", ForkedChild)


def _nothing() -> None:
    """Replacement for `gc.unfreeze`."""
