"""Whole instances in a real Ray of two nodes: engines as actors, ranks as actors, and the kill of each."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress

import psutil
import pytest
from many_servers import on_each_server, texts
from server_process import Server

from tenonry import LLM, AsyncLLM, EngineConfig, SamplingParams
from tenonry.errors import EngineDeadError
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry_testkit.fakes import RecordingStatLogger
from tenonry_testkit.processes import children_killed
from tenonry_testkit.residue import RUN_VARIABLE

pytestmark = pytest.mark.timeout(400)  # two nodes start while other tests run
PATIENCE_S = 60.0  # for hangs: Ray starts processes while other tests run
SECOND_ADDRESS = "127.0.0.2"
THIRD_ADDRESS = "127.0.0.10"
NODE = {"num_cpus": 3, "object_store_memory": 80_000_000, "include_log_monitor": False}
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",  # by default 15: with other tests running, engines would get hardly any CPU
}
OURS = ("ray::EngineActor", "ray::RankActor", "ray::engine", "ray::rank", "tenonry: ")
MODEL = {"model": "demo", "device": "cpu", "dtype": "float32"}
STREAMS = 64
SOME_TOKENS = 4
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
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
    """Running actors and children of ours, by their titles in `ps`."""
    mark, found = os.environ.get(RUN_VARIABLE), []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        with suppress(psutil.Error):
            if line.startswith(OURS) and process.environ().get(RUN_VARIABLE) == mark:
                found.append(line)
    return found


async def stream(engine, prompt, params, request_id, has_some, **fields):
    """`has_some` is set with a few tokens, and at the end in any case: who waits for it cannot miss it."""
    last = None
    try:
        async for output in engine.generate(prompt, params, request_id, **fields):
            last = output.outputs[0]
            if len(last.token_ids) >= SOME_TOKENS:
                has_some.set()
    finally:
        has_some.set()
    return last


async def streams(engine, prompts, params, pinned=None, progress=None):
    """The outcome of each: its output, or the error that ended it. Every other one requests the engine `pinned`."""
    events = progress or [asyncio.Event() for _ in prompts]
    running = (
        stream(
            engine,
            prompt,
            params,
            f"r{number}",
            events[number],
            data_parallel_rank=pinned if number % 2 else None,
        )
        for number, prompt in enumerate(prompts)
    )
    return await asyncio.gather(*running, return_exceptions=True)


async def begun(engine, params, pinned=None):
    """A stream of each prompt, all of which have some tokens."""
    progress = [asyncio.Event() for _ in range(STREAMS)]
    running = asyncio.create_task(streams(engine, prompts(), params, pinned, progress))
    await asyncio.gather(*(event.wait() for event in progress))
    return running


def prompts():
    return [f"Once upon a time there were {number}" for number in range(STREAMS)]


@pytest.fixture(scope="module")
def alone():
    """`alone(params)`: the tokens of each prompt, from one engine without Ray."""
    llm = LLM(**MODEL)
    yield lambda params: [
        list(output.outputs[0].token_ids)
        for output in llm.generate(prompts(), params, use_tqdm=False)
    ]
    llm.shutdown()


@pytest.fixture(scope="module")
def expected(alone):
    return alone(GREEDY)


@pytest.fixture(scope="module")
def expected_long(alone):
    return alone(LONG)


@pytest.mark.nightly
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
@pytest.mark.nightly
def test_ranks_on_two_nodes_answer_as_one(cluster, expected):
    """Tensor parallel over TCP: each node has room for one rank, and the ranks meet at a port of the first."""
    executor = {"name": "ray", "options": {"address": cluster.address, "num_cpus": 2}}
    engine = LLM(**MODEL, executor=executor, tensor_parallel_size=2)
    try:
        answers = engine.generate(prompts()[:8], GREEDY, use_tqdm=False)
    finally:
        engine.shutdown()
    assert [list(answer.outputs[0].token_ids) for answer in answers] == expected[:8]


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["actor", "engine"])
def test_streams_of_a_dead_engine_on_the_second_node_go_on(serve, expected_long, victim):
    """Some move to the other engine immediately; those of this rank wait for the restarted engine (AF-24)."""
    engine = serve(data_parallel_size=2)

    async def main():
        running = await begun(engine, LONG, pinned=1)
        pid = engine.engine_pids["engine 1"]
        os.kill(psutil.Process(pid).ppid() if victim == "actor" else pid, signal.SIGKILL)
        return pid, await running

    pid, answers = asyncio.run(main())
    assert engine.engine_pids["engine 1"] != pid
    assert [list(answer.token_ids) for answer in answers] == expected_long


@pytest.mark.nightly
def test_a_stopped_engine_is_killed_and_its_streams_go_on(serve, expected_long):
    """SIGSTOP: its actor counts the heartbeats, and ends it after --step-timeout."""
    engine = serve(step_timeout=2.0)

    async def main():
        running = await begun(engine, LONG)
        pid = engine.engine_pids["engine 0"]
        os.kill(pid, signal.SIGSTOP)
        return pid, await running

    pid, answers = asyncio.run(main())
    assert not psutil.pid_exists(pid)
    assert [list(answer.token_ids) for answer in answers] == expected_long


@pytest.fixture
def third_node(cluster):
    """The test may remove it. The second engine goes there: its address comes before that of the second node."""
    handler = signal.getsignal(signal.SIGTERM)
    with children_killed():
        node = cluster.add_node(**NODE, node_ip_address=THIRD_ADDRESS)
        signal.signal(signal.SIGTERM, handler)  # a node installs its own, which outlives it
        yield node
        if node in cluster.worker_nodes:
            cluster.remove_node(node)


@pytest.mark.nightly
def test_an_engine_of_a_lost_node_comes_back_on_another(third_node, serve, cluster, expected_long):
    """The node is lost with its actors; the engine restarts on a node with room."""
    engine = serve(data_parallel_size=2)

    async def main():
        running = await begun(engine, LONG, pinned=1)
        cluster.remove_node(third_node, allow_graceful=False)
        return await running

    answers = asyncio.run(main())
    assert [list(answer.token_ids) for answer in answers] == expected_long


@pytest.mark.nightly
def test_with_engine_death_stop_its_own_streams_end(serve):
    """Its streams end with an error that names the engine; the other engine's are complete."""
    engine = serve(
        data_parallel_size=2, worker=SLOW, load_balancer="round-robin", engine_death="stop"
    )

    async def main():
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        running = await begun(engine, params)
        os.kill(psutil.Process(engine.engine_pids["engine 1"]).ppid(), signal.SIGKILL)
        return await running

    answers = asyncio.run(main())
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(errors) == STREAMS // 2
    assert all(isinstance(error, EngineDeadError) and "engine 1" in str(error) for error in errors)
    assert {len(answer.token_ids) for answer in answers if answer not in errors} == {100}


@pytest.mark.nightly
def test_ranks_use_the_group_of_their_engine(serve, expected_long, caplog):
    """The launcher and the executor together; a rank that is killed is named, and the streams continue."""
    engine = serve(executor="ray", tensor_parallel_size=2)

    async def main():
        running = await begun(engine, LONG)
        ranks = [process for process in psutil.process_iter(["cmdline"]) if is_rank(process)]
        assert len(ranks) == 2
        ranks[0].kill()
        return ranks[0].pid, await running

    pid, answers = asyncio.run(main())
    assert f"pid {pid}) is gone" in caplog.text
    assert [list(answer.token_ids) for answer in answers] == expected_long


def is_rank(process):
    return is_ours(process, ("ray::RankActor", "ray::rank"))


@pytest.mark.nightly
def test_streams_of_several_api_servers_go_on(cluster, start):
    """Each server binds ports for the engine that comes back, and sends its own requests again."""
    options = ("--launcher", "ray", "--launcher-option", f"address={cluster.address}")
    server = start(*options, "--worker-option", "step_ms=5", kind=Server).ready()
    running = on_each_server(server, max_tokens=400)
    (process,) = [each for each in psutil.process_iter(["cmdline"]) if is_engine(each)]
    process.kill()
    assert {stream.end() for some in running.values() for stream in some} == {"length"}
    assert len(texts(running)) == 1
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert "Traceback" not in server.output


def is_engine(process):
    return is_ours(process, "tenonry: engine")


def is_ours(process, title):
    """Of this test run: the machine may have others."""
    line = " ".join(process.info["cmdline"] or [])
    if not line.startswith(title):
        return False
    return process.environ().get(RUN_VARIABLE) == os.environ.get(RUN_VARIABLE)
