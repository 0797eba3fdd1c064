"""KV connectors end to end: the real server, the official client, and tokens of transformers (KV-1).

The engines of one server keep K/V in memory and on disk, and one of them computes prompts for the other. Another server
finds the files of the first.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from server_process import ForkedServer

pytestmark = pytest.mark.usefixtures("one_thread")
FAMILIES = Path(__file__).parents[2] / "plugins" / "worker-torch" / "tests" / "worker_families.py"
COMMON = (
    "--load-format", "auto", "--skip-tokenizer-init", "--dtype", "float32", "--device", "cpu", "--max-model-len",
    "128", "--block-size", "4", "--max-num-seqs", "8", "--no-enable-prefix-caching",
)  # fmt: skip
NUM_TOKENS = 8


@pytest.fixture(scope="module")
def families():
    spec = importlib.util.spec_from_file_location("worker_families_served", FAMILIES)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(families, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "llama"
    families.save("llama", path)
    return path


@pytest.fixture(scope="module")
def oracle(families):
    model = families.build("llama").eval()

    def tokens(prompt):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS,
                do_sample=False, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        return out[0, len(prompt) :].tolist()

    return tokens


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("kv") / "blocks"


@pytest.fixture(scope="module")
def pair(folder, directory):
    """The first engine computes prompts, the second decodes; both have a memory and share the disk. Two API servers
    take requests.
    """
    options = ("connectors=peer,host,disk", "host.size=8MiB", f"disk.directory={directory}")
    flags = [flag for option in options for flag in ("--kv-connector-option", option)]
    server = ForkedServer(
        folder, *COMMON, "--data-parallel-size", "2", "--prefill-engines", "1", "--prefill-min-tokens", "16",
        "--api-server-count", "2", "--kv-connector", "chain", *flags, OMP_NUM_THREADS="1",
    )  # fmt: skip
    try:
        yield server.ready()
    finally:
        server.close()


def prompt_of(number, length=41):
    generator = torch.Generator().manual_seed(number)
    return torch.randint(3, 96, (length,), generator=generator).tolist()


def ask(server, prompt, *, rank=None, stream=False, **fields):
    headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return server.client().completions.create(
        model="tiny", prompt=prompt, max_tokens=fields.pop("max_tokens", NUM_TOKENS), temperature=0, logprobs=2,
        n=fields.pop("n", 1), extra_headers=headers, stream=stream, **options,
        extra_body={"ignore_eos": True, "return_token_ids": True, **fields},
    )  # fmt: skip


def tokens_of(answer):
    return answer.choices[0].token_ids


def moved(server, engine, name):
    labels = rf'{{engine="{engine}",model_name="tiny",name="{name}"}}'
    return server.metric(f"tenonry:scheduler_extra{labels}")


def counted(server, engine, name):
    return server.metric(rf'tenonry:{name}_total{{engine="{engine}",model_name="tiny"}}')


def until(found, wanted):
    """Numbers come a moment later."""
    end = time.monotonic() + 30
    while found() < wanted and time.monotonic() < end:
        time.sleep(0.05)
    assert found() >= wanted


def test_a_pair_answers_as_one_engine_alone(pair, oracle):
    prompt = prompt_of(1)
    loaded = moved(pair, 1, "peer.kv_connector_load_bytes")
    answer = ask(pair, prompt)
    alone = ask(pair, prompt, rank=1, cache_salt="alone")
    assert tokens_of(answer) == tokens_of(alone) == oracle(prompt)
    assert answer.usage == alone.usage
    assert answer.choices[0].finish_reason == alone.choices[0].finish_reason == "length"
    found = answer.choices[0].logprobs
    expected = alone.choices[0].logprobs
    assert found.token_logprobs == pytest.approx(expected.token_logprobs, abs=1e-4)
    assert [set(line) for line in found.top_logprobs] == [
        set(line) for line in expected.top_logprobs
    ]
    assert "kv_transfer_params" not in answer.model_extra
    until(lambda: moved(pair, 1, "peer.kv_connector_load_bytes"), loaded + 1)
    until(lambda: counted(pair, 0, "prompt_tokens"), len(prompt))
    until(lambda: counted(pair, 1, "external_prefix_cache_hits"), 40)


def test_a_stream_comes_from_one_engine(pair, oracle):
    prompt = prompt_of(2)
    parts = list(ask(pair, prompt, stream=True))
    tokens = [
        token for part in parts for choice in part.choices for token in choice.token_ids or ()
    ]
    assert tokens == oracle(prompt)
    assert parts[-1].usage.prompt_tokens == len(prompt)
    assert parts[-1].usage.completion_tokens == NUM_TOKENS
    assert len({part.id for part in parts}) == 1


def test_several_completions_fetch_one_prompt(pair, oracle):
    prompt = prompt_of(3)
    answer = ask(pair, prompt, n=3)
    assert [choice.token_ids for choice in answer.choices] == [oracle(prompt)] * 3


def test_what_was_asked_before_comes_from_memory(pair, oracle):
    prompt = prompt_of(4)
    before = moved(pair, 1, "host.kv_connector_load_bytes")
    first = ask(pair, prompt, rank=1)
    second = ask(pair, prompt, rank=1)
    assert tokens_of(first) == tokens_of(second) == oracle(prompt)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens == 40
    until(lambda: moved(pair, 1, "host.kv_connector_load_bytes"), before + 1)


def test_tokens_that_the_prefill_engine_had_count_as_cached(pair, oracle):
    prompt = prompt_of(10)
    for cached in (0, 40):
        answer = ask(pair, prompt)
        assert tokens_of(answer) == oracle(prompt)
        assert answer.usage.prompt_tokens_details.cached_tokens == cached


def test_short_prompts_stay_where_they_are_decoded(pair, oracle):
    before = counted(pair, 0, "prompt_tokens")
    ask(pair, prompt_of(5))
    until(lambda: counted(pair, 0, "prompt_tokens"), before + 41)
    time.sleep(0.3)
    before = counted(pair, 0, "prompt_tokens")
    decoded = counted(pair, 1, "prompt_tokens")
    prompt = prompt_of(5, 15)
    assert tokens_of(ask(pair, prompt)) == oracle(prompt)
    until(lambda: counted(pair, 1, "prompt_tokens"), decoded + 15)
    assert counted(pair, 0, "prompt_tokens") == before


def test_a_client_that_leaves_ends_its_request(pair):
    """A request may end by itself before the server sees that its client has left: then the next one shows it."""
    labels = '{engine="1",finished_reason="abort",model_name="tiny"}'
    end = time.monotonic() + 20
    while not pair.metric(f"tenonry:request_success_total{labels}"):
        assert time.monotonic() < end
        stream = ask(pair, prompt_of(6), stream=True, max_tokens=80)
        next(iter(stream))
        stream.response.close()
        time.sleep(0.5)


def test_keys_are_in_no_log_and_on_no_command_line(pair):
    command = Path(f"/proc/{pair.process.pid}/cmdline").read_text()
    assert "auth" not in command
    (path,) = {word for line in pair.lines for word in line.split('"') if word.endswith("/keys")}
    keys = Path(path).read_text().split()
    assert Path(path).stat().st_mode & 0o077 == 0
    assert not any(key in pair.output for key in keys)


def test_files_are_found_after_a_restart_and_a_dead_prefill_engine_costs_no_request(
    pair, folder, directory, oracle
):
    """The last test: the server ends in it."""
    kept = prompt_of(7)
    assert tokens_of(ask(pair, kept)) == oracle(kept)
    os.kill(pair.pids()["engine 0"], signal.SIGKILL)
    pair.wait_for(r"(engine 0 \(pid \d+\) ended)")
    for number in (8, 9):
        prompt = prompt_of(number)
        assert tokens_of(ask(pair, prompt)) == oracle(prompt)
    pair.process.terminate()
    pair.end()
    flags = ("--kv-connector", "disk", "--kv-connector-option", f"directory={directory}")
    again = ForkedServer(folder, *COMMON, *flags, OMP_NUM_THREADS="1")
    try:
        again.ready()
        answer = ask(again, kept)
        assert tokens_of(answer) == oracle(kept)
        assert answer.usage.prompt_tokens_details.cached_tokens == 40
        until(lambda: counted(again, 0, "external_prefix_cache_hits"), 40)
    finally:
        again.close()
