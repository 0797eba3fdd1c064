"""`tenonry serve` in real processes: the official client, bad input, signals and deaths. The null worker replaces
the model where only the path of a token matters.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest
from server_process import ForkedServer, Server, Stream, eventually

pytestmark = pytest.mark.timeout(
    120
)  # a start takes seconds, and several on a busy machine take more
SLOW = ("--worker-option", "step_ms=20")


@pytest.fixture(scope="module")
def shared(text_model: Path) -> Iterator[Server]:
    """One server for all tests that leave it running: a real model with random weights."""
    server = ForkedServer(text_model, "--worker", "torch", "--device", "cpu", "--max-num-seqs", "8")
    try:
        yield server.ready()
    finally:
        server.close()


# ---------------------------------------------------------------------------------------------------- it serves


def test_official_client_completes_and_streams(shared):
    with shared.client() as client:
        options = {"model": "tiny", "prompt": "Hello", "max_tokens": 20, "temperature": 0}
        whole = client.completions.create(**options)
        chunks = list(
            client.completions.create(
                **options, stream=True, stream_options={"include_usage": True}
            )
        )
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].text != ""
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 20
    assert whole.usage.prompt_tokens == 5
    assert whole.choices[0].finish_reason == "length"


def test_official_client_chats_and_streams(shared):
    with shared.client() as client:
        options = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 20,
            "temperature": 0,
        }
        whole = client.chat.completions.create(**options)
        chunks = list(client.chat.completions.create(**options, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        == whole.choices[0].message.content
        != ""
    )
    assert whole.usage.prompt_tokens == len("<|user|>hi\n<|assistant|>")


def test_streamed_token_ids_are_those_of_the_whole(shared):
    with shared.client() as client:
        body = {"return_token_ids": True, "ignore_eos": True}
        options = {
            "model": "tiny",
            "prompt": [5, 6, 7],
            "max_tokens": 12,
            "temperature": 0,
            "n": 2,
            "extra_body": body,
        }
        whole = client.completions.create(**options)
        chunks = list(client.completions.create(**options, stream=True))
    assert whole.choices[0].prompt_token_ids == [5, 6, 7]
    for index in range(2):
        ids = [
            i for chunk in chunks for c in chunk.choices if c.index == index for i in c.token_ids
        ]
        assert ids == whole.choices[index].token_ids
        assert len(ids) == 12


def test_many_prompts_at_once(shared):
    with shared.client() as client:
        prompts = [f"prompt {i}" for i in range(20)]  # more than run concurrently
        answer = client.completions.create(
            model="tiny", prompt=prompts, max_tokens=3, temperature=0
        )
        alone = client.completions.create(
            model="tiny", prompt=prompts[7], max_tokens=3, temperature=0
        )
    assert [choice.index for choice in answer.choices] == list(range(20))
    assert answer.choices[7].text == alone.choices[0].text


def test_scores_of_a_text(shared):
    """echo, logprobs and max_tokens=0 together: how evaluation harnesses request the likelihood of a text."""
    with shared.client() as client:
        answer = client.completions.create(
            model="tiny", prompt="abc", echo=True, logprobs=2, max_tokens=0
        )
        chat = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "x"}],
            max_tokens=1,
            logprobs=True,
            top_logprobs=3,
        )
    logprobs = answer.choices[0].logprobs
    assert (answer.choices[0].text, logprobs.tokens) == ("abc", ["a", "b", "c"])
    assert logprobs.token_logprobs[0] is None
    assert all(-20 < value < 0 for value in logprobs.token_logprobs[1:])
    assert answer.usage.completion_tokens == 0
    best = [entry.logprob for entry in chat.choices[0].logprobs.content[0].top_logprobs]
    assert best == sorted(best, reverse=True)
    assert len(best) == 3


def test_operators_routes(shared):
    assert shared.get("/health") == (200, '{"status":"ok"}')
    assert shared.get("/ready") == (200, '{"status":"ready"}')
    assert json.loads(shared.get("/v1/models")[1])["data"][0]["id"] == "tiny"
    assert "/v1/chat/completions" in json.loads(shared.get("/openapi.json")[1])["paths"]
    assert "generation_tokens_total" in shared.get("/metrics")[1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "x" * 600}, "max_model_len=512"),
        ({"prompt": "x" * 200_000}, "max_model_len=512"),
        ({"prompt": ""}, "empty"),
        ({"prompt": [400]}, "0 to 256"),
        ({"temperature": 1000}, "temperature"),
        ({"extra_body": {"stop_token_ids": [999]}}, "stop_token_ids holds .*999"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_request_is_refused_by_name(shared, fields, message, stream):
    with shared.client() as client, pytest.raises(openai.BadRequestError, match=message):
        client.completions.create(**{"model": "tiny", "prompt": "x", "stream": stream, **fields})


def test_client_that_leaves_is_aborted(serve):
    server = serve(*SLOW).ready()
    with server.client() as client:
        stream = client.completions.create(
            model="tiny", prompt="x", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
    running = r'tenonry:num_requests_running\{engine="0",model_name="tiny"\}'
    eventually(lambda: "client disconnected" in server.output)
    eventually(lambda: server.metric(running) == 0)


def test_full_queue_is_429_with_retry_after(serve):
    server = serve(*SLOW, "--max-num-seqs", "1", "--max-num-queued-reqs", "0").ready()
    Stream(server)
    with server.client() as client:
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError) as refused:
                client.completions.create(model="tiny", prompt="x", stream=stream)
            assert refused.value.code == "queue_full"
            assert int(refused.value.response.headers["retry-after"]) >= 1


def test_key_is_asked_for(serve):
    server = serve("--api-key", "secret").ready()
    assert server.get("/health")[0] == 200
    assert server.get("/metrics")[0] == 401
    with server.client("wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    with server.client("secret") as client:
        assert [model.id for model in client.models.list()] == ["tiny"]


def test_server_without_tokenizer_speaks_token_ids(serve):
    server = serve("--skip-tokenizer-init").ready()
    with server.client() as client:
        with pytest.raises(openai.BadRequestError, match="token ids"):
            client.completions.create(model="tiny", prompt="text")
        answer = client.completions.create(
            model="tiny", prompt=[1], max_tokens=3, extra_body={"return_token_ids": True}
        )
    assert len(answer.choices[0].token_ids) == 3


# ------------------------------------------------------------------------------------------------ it fails to start


def test_port_in_use_is_refused_before_anything_is_loaded(text_model):
    """Reliability, fault 28: the line names the port and the process that has it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "tenonry", "serve", str(text_model), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tenonry: error: ")]
    assert f"port {port}" in line
    assert f"process {psutil.Process().pid}" in line
    assert "loading" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--scheduler", "batchin"), "did you mean 'batching'?"),
        (("--route", "nothing"), "no route is called 'nothing'"),
        (("--ssl-certfile", "/nowhere.pem"), "ssl_certfile=/nowhere.pem"),
        (("--max-model-len", "100000"), "512"),
    ],
)
def test_start_that_cannot_work_is_one_line_and_status_1(serve, arguments, named):
    server = serve(*arguments)
    assert server.end() == 1
    (line,) = [line for line in server.lines if line.startswith("tenonry: error: ")]
    assert named in line
    assert "Traceback" not in server.output


# -------------------------------------------------------------------------------------------------------- it ends


def test_sigterm_finishes_what_runs_and_the_second_one_aborts(serve):
    """Reliability, fault 16."""
    server = serve(*SLOW).ready()
    engine = server.engine_pid()
    stream = Stream(server)
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: server.get("/ready")[0] == 503)
    with server.client() as client, pytest.raises(openai.InternalServerError) as refused:
        client.completions.create(model="tiny", prompt="x")
    assert refused.value.status_code == 503
    assert refused.value.response.headers["retry-after"]
    assert stream.is_alive()
    server.process.send_signal(signal.SIGTERM)
    assert stream.end() == "abort"
    assert server.end() == 0
    eventually(lambda: not psutil.pid_exists(engine))


def test_sigterm_waits_for_running_requests(serve):
    server = serve("--worker-option", "step_ms=3").ready()
    stream = Stream(server)
    server.process.send_signal(signal.SIGTERM)
    assert stream.end() == "length"
    assert sum(chunk.choices[0].text != "" for chunk in stream.chunks) > 100
    assert server.end() == 0


def test_killed_engine_ends_every_stream_with_an_error_and_the_server_with_a_status(serve):
    """Bad input and faults: SIGKILL of the engine."""
    server = serve(*SLOW, "--engine-death", "stop").ready()
    streams = [Stream(server) for _ in range(4)]
    psutil.Process(server.engine_pid()).kill()
    for stream in streams:
        stream.join(20)
        assert not stream.is_alive()
        assert stream.error is not None
        assert "the engine has died" in str(stream.error)
    assert server.end() == 1
    assert server.output.count("Traceback") == 0


def test_killed_engine_is_started_again_and_every_stream_goes_on(serve, monkeypatch):
    """Continuity, seen from outside: clients notice nothing, probes and metrics report the recovery (AF-24)."""
    # The start takes long enough to be seen.
    monkeypatch.setenv("TENONRY_FAILPOINTS", "fleet.before_start=sleep:1@2")
    server = serve("--worker-option", "step_ms=5", "--stat-logger", "prometheus").ready()
    whole = Stream(server)
    assert whole.end() == "length"
    streams = [Stream(server) for _ in range(4)]
    psutil.Process(server.engine_pid()).kill()
    eventually(lambda: server.get("/ready") == (503, '{"status":"recovering"}'))
    assert server.get("/health")[0] == 200
    with server.client() as client:
        late = client.completions.create(model="tiny", prompt="x", max_tokens=3)
    assert late.usage.completion_tokens == 3
    for stream in streams:
        assert stream.end() == "length"
        assert stream.error is None
        assert stream.text == whole.text
    assert server.get("/ready")[0] == 200
    label = '{engine="0",model_name="tiny"}'
    for name, count in (("engine_deaths", 1), ("engine_restarts", 1), ("requests_continued", 4)):
        assert server.metric(f"tenonry:{name}_total{label}") == count
    assert server.output.count("the engine failed") == 1
    assert server.output.count("failpoint fleet.before_start") == 1
    server.process.terminate()
    assert server.end() == 0


@pytest.mark.nightly
def test_an_engine_that_keeps_dying_ends_the_server_with_a_status(serve):
    server = serve(*SLOW).ready()
    stream = Stream(server)
    for number in range(4):
        eventually(lambda count=number: server.output.count("serves again") == count)
        seen = len(stream.chunks)  # a stream that continues is not suspected of the death
        eventually(lambda least=seen + 20: len(stream.chunks) > least)
        psutil.Process(server.engine_pid()).kill()
    stream.join(20)
    assert not stream.is_alive()
    assert "the engine has died" in str(stream.error)
    assert server.end() == 1
    assert "it restarted 3 times in 60 s" in server.output


def test_killed_server_leaves_no_engine(serve):
    """Q6: nothing outlives the process that owns it."""
    server = serve(*SLOW).ready()
    engine = server.engine_pid()
    stream = Stream(server)
    server.process.kill()
    assert server.process.wait(10) == -signal.SIGKILL
    eventually(lambda: not psutil.pid_exists(engine))
    stream.join(20)


def test_sigterm_while_the_model_loads_ends_at_once(serve):
    server = serve(worker="torch")
    server.wait_for(r"(loading) ")
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert "Traceback" not in server.output
