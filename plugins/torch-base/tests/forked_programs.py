"""Programs in processes of their own: forks of one that has imported torch, which takes longer than most of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SERVE = """
import contextlib, io, json, os, traceback
for line in sys.stdin:
    reads, writes = os.pipe()
    if os.fork() == 0:
        said, error = io.StringIO(), ""
        with contextlib.redirect_stdout(said):
            try:
                exec(compile(json.loads(line), "program", "exec"), dict(globals()))
            except BaseException:
                error = traceback.format_exc()
        os.write(writes, json.dumps([said.getvalue(), error]).encode())
        os._exit(0)
    os.close(writes)
    with open(reads, "rb") as answer:
        text = answer.read().decode()
    os.wait()
    print(text or '["", "it ended"]', flush=True)
"""


@contextmanager
def forked_programs(begin: str) -> Iterator[Callable[[str], str]]:
    """`run(program)`: its output after `begin`, in a process where nothing else was done. `begin` imports sys."""
    command = [sys.executable, "-c", begin + SERVE]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:

        def said(program: str) -> str:
            parent.stdin.write(json.dumps(program) + "\n")
            parent.stdin.flush()
            printed, error = json.loads(parent.stdout.readline())
            assert not error, error
            return printed

        yield said
        parent.stdin.close()
