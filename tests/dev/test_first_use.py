"""First use: the README's commands, run as they stand, and their times. Stand-ins for the server and its start."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dev import first_use

SERVER = """
import json, os
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({{"answer": {answer!r}, "home": os.environ["HOME"]}}).encode())
HTTPServer(("127.0.0.1", int(os.environ["TENONRY_PORT"])), Handler).serve_forever()
"""


def test_the_commands_are_those_of_the_readme():
    serve, ask = first_use.readme_commands()
    assert serve == "python3 dev.py run"
    assert ask.startswith("curl http://127.0.0.1:8000/v1/chat/completions")
    assert "Name the capital of France." in ask


def test_nothing_of_the_user_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HOME", "/of/the/user")
    monkeypatch.setenv("PIP_RETRIES", "1")
    env = first_use.empty_environment(tmp_path, 4242)
    assert env["HOME"] == str(tmp_path)
    assert env["TENONRY_PORT"] == "4242"
    assert env["PIP_RETRIES"] == "1"
    assert "HF_HOME" not in env


@pytest.mark.integration
@pytest.mark.parametrize("answer", [first_use.ANSWER, "The capital of Belgium is the fox."])
def test_an_answer_is_checked_and_the_server_ended(
    answer: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    port = first_use.free_port()
    env = {**first_use.empty_environment(tmp_path, port), "PATH": os.environ["PATH"]}
    serve = [sys.executable, "-c", SERVER.format(answer=answer)]
    ask = f"{sys.executable} -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:{port}/\").read().decode())'"
    if answer == first_use.ANSWER:
        with first_use.timed("next start to answer") as answered:
            answered(first_use.answered(serve, ask, tmp_path, env))
        out, err = capfd.readouterr()
        shown = next(line for line in out.splitlines() if line.startswith("{"))
        assert json.loads(shown) == {"answer": answer, "home": str(tmp_path)}
        assert re.search(r"next start to answer: \d+\.\d s, target 10 s; \d+ s of CPU time", err)
    else:
        with pytest.raises(SystemExit, match="the answer does not contain 'The capital of France"):
            first_use.answered(serve, ask, tmp_path, env)


@pytest.mark.integration
def test_a_server_that_ends_is_reported(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as server:
        server.wait()
        with pytest.raises(SystemExit, match="ended with status 3 before it was ready"):
            first_use.wait_until_ready(server, first_use.free_port())


def test_other_words_are_refused():
    with pytest.raises(SystemExit, match=r"usage: python3 dev\.py first-use"):
        first_use.first_use(["now"])
