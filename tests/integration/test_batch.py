"""`tenonry batch`: with a running server, with one of its own, and continued after SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import openai
import psutil
import pytest
from server_process import TORCH_CACHE

from tenonry_testkit.kernel.forked import ForkedCommand

pytestmark = pytest.mark.timeout(120)


def request(number: int, url: str = "/v1/completions", **body) -> dict:
    fields = {"model": "tiny", "max_tokens": 4, "temperature": 0, **body}
    if url == "/v1/completions":
        fields.setdefault("prompt", f"say {number}")
    return {"custom_id": f"n{number}", "method": "POST", "url": url, "body": fields}


def chat(number: int) -> dict:
    messages = [{"role": "user", "content": f"say {number}"}]
    return request(number, "/v1/chat/completions", messages=messages)


def write(path: Path, requests: list[dict]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in requests))
    return path


def read(path: Path) -> dict[str, dict]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines), "a request was answered twice"
    return found


def start(
    *words: object, popen: type[subprocess.Popen[str]] = ForkedCommand
) -> subprocess.Popen[str]:
    """The command in a fork of this process, or as `popen` starts it."""
    return popen(
        [sys.executable, "-m", "tenonry", "batch", *map(str, words)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**TORCH_CACHE, **os.environ},
    )  # fmt: skip


def run(*words: object) -> tuple[int, str, str]:
    process = start(*words)
    said, errors = process.communicate(timeout=90)
    return process.returncode, said, errors


def eventually(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_beside_a_server_each_line_gets_what_a_client_gets(serve, tmp_path):
    server = serve("--api-key", "secret").ready()
    asked = [*map(request, range(20)), *map(chat, range(20, 30))]
    asked += [request(30, model="other"), request(31, max_tokens=-1)]
    source, out = write(tmp_path / "in.jsonl", asked), tmp_path / "out.jsonl"
    status, said, _ = run(source, out, "--server", server.url + "/v1", "--api-key", "secret")
    assert (status, said) == (
        1,
        f"32 requests are answered in {out}, 2 of them with an error (status_code is not 200)\n",
    )
    answers = read(out)
    assert set(answers) == {one["custom_id"] for one in asked}
    with server.client("secret") as client:
        for one in (asked[3], asked[25]):
            response = answers[one["custom_id"]]["response"]
            assert response["status_code"] == 200
            assert response["request_id"]
            is_chat = "messages" in one["body"]
            make = client.chat.completions.create if is_chat else client.completions.create
            kind = openai.types.chat.ChatCompletion if is_chat else openai.types.Completion
            told = kind.model_validate(response["body"])
            assert told.choices == make(**one["body"]).choices
    refused = [answers[name]["response"] for name in ("n30", "n31")]
    assert [one["status_code"] for one in refused] == [404, 400]
    assert "max_tokens" in refused[1]["body"]["error"]["message"]
    wrong = run(source, tmp_path / "other.jsonl", "--server", server.url, "--api-key", "wrong")
    assert wrong[0] == 1
    assert {one["response"]["status_code"] for one in read(tmp_path / "other.jsonl").values()} == {
        401
    }


@pytest.mark.nightly
def test_a_killed_run_with_a_server_of_its_own_is_continued(text_model, tmp_path):
    source = write(tmp_path / "in.jsonl", [request(number, max_tokens=20) for number in range(200)])
    out = tmp_path / "out.jsonl"
    words = [source, out, "--concurrency", 4, "serve", text_model, "--served-model-name", "tiny"]
    words += ["--load-format", "dummy", "--worker", "null", "--worker-option", "step_ms=2"]
    process = start(*words, popen=subprocess.Popen)
    try:
        eventually(lambda: out.exists() and out.read_bytes().count(b"\n") >= 20)
        below = psutil.Process(process.pid).children(recursive=True)
        folders = set(Path(tempfile.gettempdir()).glob("tenonry-batch-*"))
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
    assert below
    assert not psutil.wait_procs(below, timeout=30)[1], "a process outlived the batch"
    eventually(lambda: not any(folder.exists() for folder in folders))
    kept = out.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    assert 20 <= kept.count(b"\n") < 200
    status, said, errors = run(*words)
    assert status == 0, errors
    assert said == f"200 requests are answered in {out}\n"
    assert out.read_bytes().startswith(kept)
    answers = read(out)
    assert set(answers) == {f"n{number}" for number in range(200)}
    usage = [one["response"]["body"]["usage"]["completion_tokens"] for one in answers.values()]
    assert set(usage) == {20}
    assert run(*words)[:2] == (0, said)  # nothing is left to do: no server is started


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        ([], 1, "name a server: --server URL"),
        (["--server", "http://x", "serve", "demo"], 1, "name a server"),
        (["server", "demo"], 2, "invalid choice: 'server'"),
        (["serve", "demo", "--max-num-sqs", "3"], 2, "did you mean --max-num-seqs?"),
        (["--concurrency", "0", "serve", "demo"], 1, "--concurrency 0 must be from 1 to 4096"),
        (["--server", "127.0.0.1:8000"], 1, "must begin with http:// or https://"),
        (["--server", "http://a:b", "--attempts", "1"], 1, "is no URL"),
        (["--server", "http://127.0.0.1:9", "--attempts", "1"], 1, "0 of 1 requests are answered; run the same"),
        (["serve", "/nowhere/at/all"], 1, "the server has ended (exit code 1); see the lines above"),
    ],
)  # fmt: skip
def test_bad_words_end_in_one_line(words, status, error, tmp_path):
    source = write(tmp_path / "in.jsonl", [request(0)])
    found, _, errors = run(source, tmp_path / "out.jsonl", *words)
    assert found == status
    assert error in errors.splitlines()[-1]
