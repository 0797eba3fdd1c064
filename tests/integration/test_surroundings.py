"""Commands and programs whose standard streams are closed or ASCII, or whose locale is not UTF-8."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from server_process import eventually, patience

from tenonry_testkit.tiers import nightly_unless

# As in a container whose locale is `C`, with what Python does against it switched off.
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
CLOSED = "<&- >&- 2>&-"
TENONRY = (sys.executable, "-m", "tenonry")
PROMPT = "Größe: ñandú"


def shell(*command: str, closed: str = "") -> list[str]:
    """A command line that starts `command` with some of its standard streams closed."""
    return ["sh", "-c", f'exec "$@" {closed}', "sh", *command]


def run(
    *command: str, closed: str = "", text: str = "", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        shell(*command, closed=closed),
        input=text.encode(),
        capture_output=True,
        timeout=patience(120),
        check=False,
        env=os.environ | environment,
    )


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=patience(20))
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def completion(path: Path, prompt: str) -> dict[str, object] | None:
    """The answer of a server; None while it does not listen, or is not ready."""
    connection = UnixConnection(path)
    try:
        body = json.dumps({"prompt": prompt, "max_tokens": 4})
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return json.loads(answer.read()) if answer.status == 200 else None
    except OSError:
        return None
    finally:
        connection.close()


@pytest.mark.nightly_after(1)
@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "flags",
    [
        ["--api-server-count", "2", "--data-parallel-size", "2"],
        ["--executor", "mp", "--tensor-parallel-size", "2"],
    ],
    ids=["two-servers-two-engines", "two-ranks"],
)
def test_a_server_without_standard_streams_answers(tmp_path, flags):
    path = tmp_path / "http"
    command = (*TENONRY, "serve", "demo", "--worker", "null", "--uds", str(path), *flags)
    process = subprocess.Popen(shell(*command, closed=CLOSED))
    try:
        answers = []  # not every server is ready when the first one answers
        eventually(
            lambda: (
                process.poll() is not None
                or answers.append(completion(path, PROMPT))
                or answers[-1]
            )
        )
        answer = answers[-1]
        assert answer["usage"]["completion_tokens"] == 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(patience(30)) == 0
    finally:
        process.kill()
        process.wait()


LIBRARY = """
import json, sys
from tenonry import LLM, SamplingParams
with LLM(model="demo", worker="null", executor="mp", tensor_parallel_size=2) as llm:
    (answer,) = llm.generate(["Hi"], SamplingParams(max_tokens=3, ignore_eos=True))
with open(sys.argv[1], "w") as file:
    json.dump(list(answer.outputs[0].token_ids), file)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_ranks_of_a_program_without_standard_streams_start(tmp_path):
    """The pipe of a rank's message got the number of standard input, and the start waited until its time limit."""
    file = tmp_path / "tokens"
    done = run(sys.executable, "-c", LIBRARY, str(file), closed=CLOSED)
    assert done.returncode == 0
    assert len(json.loads(file.read_text("utf-8"))) == 3


@pytest.mark.nightly_after(2)
@pytest.mark.parametrize(
    ("words", "closed"),
    nightly_unless(
        lambda words, closed: words == ["--help"] or closed == CLOSED,
        itertools.product(
            (["--help"], ["serve", "--help"], ["plugins", "list"], ["plugins", "show", "batching"]),
            ("<&-", ">&-", "2>&-", CLOSED),
        ),
    ),
)
def test_a_command_without_standard_streams_ends_well(words, closed):
    done = run(*TENONRY, *words, closed=closed)
    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.nightly
def test_the_locale_changes_no_answer():
    """The prompt is read as UTF-8 from the command line and from standard input; every file has its own encoding."""
    expected = run(*TENONRY, "generate", PROMPT, "--max-tokens", "8", PYTHONUTF8="1")
    assert expected.returncode == 0, expected.stderr.decode()
    for prompt, flags, environment in (
        (PROMPT, ["-tp", "2"], C_LOCALE),
        ("-", [], C_LOCALE),
        ("-", [], {"PYTHONIOENCODING": "ascii"}),
    ):
        words = ("generate", prompt, "--max-tokens", "8", *flags)
        done = run(*TENONRY, *words, text=PROMPT, **environment)
        assert (done.returncode, done.stdout) == (0, expected.stdout), done.stderr.decode()


@pytest.mark.parametrize(
    ("words", "status"), [(["generate", "-"], 1), (["chat", "demo"], 0)], ids=["generate", "chat"]
)
def test_without_standard_input_there_is_one_sentence_or_an_end(words, status):
    done = run(*TENONRY, *words, "--worker", "null", closed="<&-")
    assert b"Traceback" not in done.stderr
    assert done.returncode == status


def test_bytes_that_are_no_text_are_refused_in_one_line():
    done = subprocess.run(
        [*TENONRY, "generate", "-", "--worker", "null"],
        input=b"\xff\xfe",
        capture_output=True,
        check=False,
        timeout=patience(25),
    )
    assert done.returncode == 1
    assert b"lone surrogate" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.nightly_after(2)
@pytest.mark.parametrize(
    ("environment", "words"),
    nightly_unless(
        lambda environment, words: words == ["--help"] or environment is C_LOCALE,
        itertools.product(
            (C_LOCALE, {"PYTHONIOENCODING": "ascii"}),
            (
                ["--help"],
                ["serve", "--help"],
                ["plugins", "list"],
                ["plugins", "show", "batching"],
                ["models", "check", "demo"],
            ),
        ),
    ),
    ids=lambda each: "-".join(each).strip("-"),
)
def test_standard_output_in_ascii_gets_escapes(environment, words):
    done = run(*TENONRY, *words, **environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("ascii")


@pytest.mark.nightly_after(1)
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("closed", "environment"), [(CLOSED, {}), ("", C_LOCALE)], ids=["closed", "C-locale"]
)
def test_a_batch_is_answered(tmp_path, closed, environment):
    requests, answers = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    body = {"prompt": PROMPT, "max_tokens": 4}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    requests.write_text(json.dumps(line, ensure_ascii=False) + "\n", "utf-8")
    words = ("batch", str(requests), str(answers), "serve", "demo", "--worker", "null")
    done = run(*TENONRY, *words, closed=closed, **environment)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(answers.read_text("utf-8"))["response"]["status_code"] == 200
