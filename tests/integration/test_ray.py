"""Whole instances in a real Ray of two nodes: engines as actors, ranks as actors, and the kill of each."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress

import psutil
import pytest

from tenonry import LLM, AsyncLLM, EngineConfig, SamplingParams
from tenonry.errors import EngineDeadError
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry_testkit.fakes import RecordingStatLogger
from tenonry_testkit.processes import children_killed
from tenonry_testkit.residue import RUN_VARIABLE

pytestmark = pytest.mark.timeout(400)  # two nodes start beside all other tests
PATIENCE_S = 20.0
SECOND_ADDRESS = "127.0.0.2"
NODE = {"num_cpus": 3, "object_store_memory": 80_000_000, "include_log_monitor": False}
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}
OURS = ("ray::EngineActor", "ray::RankActor", "ray::engine", "ray::rank", "tenonry: ")
MODEL = {"model": "demo", "device": "cpu", "dtype": "float32"}
STREAMS = 64
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SLOW = {"name": "null", "options": {"step_ms": 20}}


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with room for one engine each; everything is killed in the end."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch, children_killed():
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        found = Cluster(
            initialize_head=True,
            head_node_args={**NODE, "include_dashboard": False, "no_monitor": True},
        )
        found.add_node(**NODE, node_ip_address=SECOND_ADDRESS)
        yield found


@pytest.fixture
def serve(cluster):
    """`serve(**settings)`: an AsyncLLM whose engines are in the cluster; no actor or process of ours outlives it."""
    import ray

    built = []

    def start(*, observers=None, **settings):
        launcher = {"name": "ray", "options": {"address": cluster.address}}
        config = EngineConfig(**{**MODEL, "launcher": launcher, **settings})
        built.append(AsyncLLM(config, stat_loggers=observers))
        return built[-1]

    yield start
    for engine in built:
        engine.shutdown()
    assert not ray.is_initialized()
    deadline = time.monotonic() + PATIENCE_S
    while left := processes():
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def processes():
    """Actors and children of ours that run, by what `ps` shows."""
    mark, found = os.environ.get(RUN_VARIABLE), []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        with suppress(psutil.Error):
            if line.startswith(OURS) and process.environ().get(RUN_VARIABLE) == mark:
                found.append(line)
    return found


async def stream(engine, prompt, params, request_id):
    last = [output async for output in engine.generate(prompt, params, request_id)][-1]
    return last.outputs[0]


async def streams(engine, prompts, params):
    """The outcome of each: its output, or the error that ended it."""
    running = (
        stream(engine, prompt, params, f"r{number}") for number, prompt in enumerate(prompts)
    )
    return await asyncio.gather(*running, return_exceptions=True)


async def all_run(engine):
    """Wait until every stream was sent to an engine, and a step has begun."""
    while engine.num_unfinished_requests < STREAMS:  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)


def prompts():
    return [f"Once upon a time there were {number}" for number in range(STREAMS)]


@pytest.fixture(scope="module")
def expected():
    """The tokens of each prompt, from one engine without Ray."""
    llm = LLM(**MODEL)
    try:
        return [
            list(output.outputs[0].token_ids)
            for output in llm.generate(prompts(), GREEDY, use_tqdm=False)
        ]
    finally:
        llm.shutdown()


@pytest.mark.slow
def test_two_engines_on_two_nodes_answer_as_one(serve, expected):
    """64 streams over TCP with CURVE, all complete; both engines worked; tokens as in one engine without Ray."""
    logger = RecordingStatLogger(StatLoggerContext(EngineConfig(model="demo")))
    engine = serve(data_parallel_size=2, observers={"rec": logger})
    assert sorted(engine.engine_pids) == ["engine 0", "engine 1"]
    answers = asyncio.run(streams(engine, prompts(), GREEDY))
    engine.shutdown()
    assert {record.engine_index for record in logger.records} == {0, 1}
    assert {answer.finish_reason for answer in answers} == {"length"}
    assert [list(answer.token_ids) for answer in answers] == expected


@pytest.mark.slow
def test_ranks_on_two_nodes_answer_as_one(cluster, expected):
    """Tensor parallel over TCP: each node has room for one rank, and the ranks meet at a port of the first."""
    executor = {"name": "ray", "options": {"address": cluster.address, "num_cpus": 2}}
    engine = LLM(**MODEL, executor=executor, tensor_parallel_size=2)
    try:
        answers = engine.generate(prompts()[:8], GREEDY, use_tqdm=False)
    finally:
        engine.shutdown()
    assert [list(answer.outputs[0].token_ids) for answer in answers] == expected[:8]


def test_a_dead_actor_ends_its_own_streams_only(serve):
    """Its streams end with an error that names the engine; the other engine's are complete."""
    engine = serve(data_parallel_size=2, worker=SLOW, load_balancer="round-robin")

    async def main():
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        running = asyncio.create_task(streams(engine, prompts(), params))
        await all_run(engine)
        os.kill(psutil.Process(engine.engine_pids["engine 1"]).ppid(), signal.SIGKILL)
        return await running

    answers = asyncio.run(main())
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(errors) == STREAMS // 2
    assert all(isinstance(error, EngineDeadError) and "engine 1" in str(error) for error in errors)
    assert {len(answer.token_ids) for answer in answers if answer not in errors} == {100}


def test_ranks_use_the_group_of_their_engine(serve):
    """The launcher and the executor together; a rank that is killed is named in the error of the streams."""
    engine = serve(executor="ray", tensor_parallel_size=2, worker=SLOW)

    async def main():
        answers = await streams(engine, prompts(), GREEDY)
        assert {answer.finish_reason for answer in answers} == {"length"}
        ranks = [process for process in psutil.process_iter(["cmdline"]) if is_rank(process)]
        assert len(ranks) == 2
        running = asyncio.create_task(
            streams(engine, prompts(), SamplingParams(max_tokens=200, ignore_eos=True))
        )
        await all_run(engine)
        ranks[0].kill()
        return ranks[0].pid, await running

    pid, answers = asyncio.run(main())
    assert all(
        isinstance(answer, EngineDeadError) and f"pid {pid}) is gone" in str(answer)
        for answer in answers
    )


def is_rank(process):
    line = " ".join(process.info["cmdline"] or [])
    return line.startswith(("ray::RankActor", "ray::rank")) and process.environ().get(
        RUN_VARIABLE
    ) == os.environ.get(RUN_VARIABLE)
