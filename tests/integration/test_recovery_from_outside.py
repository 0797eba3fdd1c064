"""Recoveries that are more than a restart, as seen by clients and operators: a request that kills, a scheduler that is
replaced, a standby engine. Official client, `/ready`, `/metrics` and the exit status (AF-24, AF-26, AF-28).
"""

from __future__ import annotations

import openai
import psutil
import pytest
from many_servers import total
from server_process import Stream, eventually

pytestmark = pytest.mark.timeout(180)  # as in test_openai_server
FAULTY = "tenonry_testkit.kernel.faulty:FaultyWorker"
KILLER = 7  # the token that ends a process
HARMLESS = {"temperature": 0, "allowed_token_ids": list(range(100, 200))}
BROKEN = """
from tenonry_scheduler_batching.scheduler import BatchingScheduler

class Broken(BatchingScheduler):
    def schedule(self):
        output = super().schedule()
        if output.step_id > 30:
            raise ValueError("no idea what runs next")
        return output
"""


def ended_well(server):
    """It serves, and its end is an orderly one."""
    eventually(lambda: server.get("/ready")[0] == 200)
    with server.client() as client:
        last = client.completions.create(
            model="tiny", prompt="x", max_tokens=3, extra_body=HARMLESS
        )
    assert last.usage.completion_tokens == 3
    server.process.terminate()
    return server.end() == 0


def test_a_request_that_kills_ends_with_a_code_and_takes_no_other_with_it(serve):
    server = serve(
        "--worker-option", f"exit_token={KILLER}", "--worker-option", "delay_s=0.01", worker=FAULTY
    ).ready()
    whole = Stream(server, **HARMLESS)
    assert whole.end() == "length"
    streams = [Stream(server, **HARMLESS) for _ in range(4)]
    with server.client() as client, pytest.raises(openai.InternalServerError) as found:
        client.with_options(timeout=120).completions.create(model="tiny", prompt=[KILLER])
    assert found.value.code == "engine_crash"
    assert "engines died whenever this request ran" in str(found.value)
    assert [stream.end() for stream in streams] == ["length"] * 4
    assert {stream.text for stream in streams} == {whole.text}
    assert total(server, "engine_deaths_total") == total(server, "engine_restarts_total") > 1
    assert ended_well(server)


@pytest.mark.nightly
def test_a_scheduler_that_raised_twice_is_replaced_and_no_stream_ends(serve, tmp_path):
    file = tmp_path / "broken.py"
    file.write_text(BROKEN, "utf-8")
    server = serve(
        "--worker-option", "step_ms=5", "--scheduler", f"{file}:Broken", "--fallback-scheduler", "batching"
    ).ready()  # fmt: skip
    streams = [Stream(server) for _ in range(4)]
    assert [stream.end() for stream in streams] == ["length"] * 4
    assert len({stream.text for stream in streams}) == 1
    assert total(server, "scheduler_fallbacks_total") == 1
    assert total(server, "engine_deaths_total") == 2
    assert 'kind="scheduler",name="batching"' in server.get("/metrics")[1]
    assert server.output.count("no idea what runs next") >= 2
    assert ended_well(server)


@pytest.mark.nightly
def test_an_engine_that_stands_by_takes_over_and_clients_notice_nothing(serve):
    server = serve("--worker-option", "step_ms=5", "--standby-engines", "1").ready()
    eventually(lambda: total(server, "standby_engines") == 1)
    whole = Stream(server)
    assert whole.end() == "length"
    pids = server.pids()
    streams = [Stream(server) for _ in range(4)]
    psutil.Process(pids["engine 0"]).kill()
    assert [stream.end() for stream in streams] == ["length"] * 4
    assert {stream.text for stream in streams} == {whole.text}
    assert pids["standby 1"] in server.pids().values()
    assert total(server, "engine_takeovers_total") == 1
    eventually(lambda: total(server, "standby_engines") == 1)  # another one
    assert ended_well(server)
