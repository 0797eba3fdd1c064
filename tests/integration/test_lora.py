"""LoRA adapters end to end: the real server on two ranks, the official client, and tokens of peft (AF-7, AF-15, EC-13).

Adapters come and go while the server runs, share batches with each other and with rows without one, and a name that
comes back with other content finds no K/V of the former one.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import shutil
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
import torch
from server_process import ForkedServer

from tenonry import LLM, AsyncLLM, EngineConfig, LoRARequest, SamplingParams
from tenonry.errors import ConfigError, RequestError
from tenonry.step import Adapter

pytestmark = pytest.mark.usefixtures("one_thread")
WORKER_TESTS = Path(__file__).parents[2] / "plugins" / "worker-torch" / "tests"
KEY = "operator"
RANKS = (1, 2, 3, 4, 5, 8, 11, 16)
SHELF = {
    "style one": "a2",
    "style-2.1": "a4",
    "élève": "a8",
}  # those of the folder, and whose weights they have
BODY = {"temperature": 0, "extra_body": {"ignore_eos": True, "return_token_ids": True}}


def load(name):
    """A helper of the worker's own tests."""
    sys.path.insert(0, str(WORKER_TESTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(WORKER_TESTS))


families = load("worker_families")
load("worker_tools")
lora = load("lora_tools")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "llama"
    families.save("llama", folder)
    return folder


@pytest.fixture(scope="module")
def peft(folder, tmp_path_factory):
    return lora.Peft(families.build("llama"), tmp_path_factory.mktemp("adapters"), RANKS)


def prompt_of(number):
    generator = torch.Generator().manual_seed(number)
    return torch.randint(3, 96, (9 + number,), generator=generator).tolist()


@pytest.fixture(scope="module")
def shelf(peft, tmp_path_factory):
    """A folder of adapters that requests may name, and invalid entries: a link out of it, an unsupported one."""
    shelf = tmp_path_factory.mktemp("shelf")
    for name, source in SHELF.items():
        shutil.copytree(peft.path(source), shelf / name)
    shutil.copytree(peft.path("a3"), shelf / "broken")
    (shelf / "broken" / "adapter_model.safetensors").write_bytes(b"no weights")
    (shelf / "link").symlink_to(peft.path("a5"))
    return shelf


@pytest.fixture(scope="module")
def server(folder, peft, shelf):
    server = ForkedServer(
        folder, "--load-format", "auto", "--skip-tokenizer-init", "--dtype", "float32", "--api-key", KEY,
        "--enable-operator-routes",
        "--tensor-parallel-size", "2", "--max-loras", "3", "--max-model-len", "64", "--block-size", "4",
        "--lora-folder", str(shelf), "--max-folder-loras", "2", "--worker-option", "max_cpu_loras=8",
        "--lora-modules", f"first={peft.path('a1')}", "--max-num-batched-tokens", "32", "--max-num-seqs", "8",
        OMP_NUM_THREADS="1",
    )  # fmt: skip
    try:
        yield server.ready()
    finally:
        server.close()


@pytest.fixture
def client(server):
    return server.client(KEY)


def post(server, path, key=KEY, **body):
    """(status, the answer)."""
    request = urllib.request.Request(
        f"{server.url}/v1/{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {key}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def tokens(client, model, prompt):
    answer = client.completions.create(
        model=model, prompt=prompt, max_tokens=lora.NUM_TOKENS, **BODY
    )
    return answer.choices[0].token_ids


def test_one_of_the_start_is_served_and_listed(client, peft):
    cards = {card.id: card for card in client.models.list()}
    assert set(cards) == {"tiny", "first"}
    assert cards["first"].parent == "tiny"
    assert tokens(client, "first", prompt_of(1)) == peft.generate("a1", prompt_of(1))
    assert tokens(client, "tiny", prompt_of(1)) == peft.generate(None, prompt_of(1))


def test_eight_at_once_in_steps_of_three_and_no_ninth(server, client, peft, tmp_path):
    names = [f"a{rank}" for rank in RANKS]
    for name in names:
        status, answer = post(
            server, "load_lora_adapter", lora_name=name, lora_path=peft.path(name)
        )
        assert (status, answer["status"]) == (200, "loaded")
    models = [*names, "tiny", *names, "tiny"]
    wanted = [
        peft.generate(None if model == "tiny" else model, prompt_of(number % 5))
        for number, model in enumerate(models)
    ]
    with ThreadPoolExecutor(len(models)) as threads:
        found = threads.map(
            lambda pair: tokens(client, pair[1], prompt_of(pair[0] % 5)), enumerate(models)
        )
        assert list(found) == wanted
    ninth = tmp_path / "ninth"
    shutil.copytree(peft.path("a4"), ninth)
    config = json.loads((ninth / "adapter_config.json").read_text())
    (ninth / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 3}))
    status, error = post(server, "load_lora_adapter", lora_name="ninth", lora_path=str(ninth))
    assert (status, error["param"]) == (400, "lora_path")
    assert "max_cpu_loras=8 adapters are in main memory" in error["message"]
    for name in names:
        assert post(server, "unload_lora_adapter", lora_name=name)[0] == 200
    assert {card.id for card in client.models.list()} == {"tiny", "first"}


def test_a_name_that_comes_back_with_other_content_finds_no_old_kv(server, client, peft):
    prompt = prompt_of(20)
    for name in ("a3", "a4"):
        status, _ = post(
            server,
            "load_lora_adapter",
            lora_name="style",
            lora_path=peft.path(name),
            load_inplace=True,
        )
        assert status == 200
        for _ in range(2):  # the second time from the prefix cache
            assert tokens(client, "style", prompt) == peft.generate(name, prompt)
    status, again = post(server, "load_lora_adapter", lora_name="style", lora_path=peft.path("a3"))
    assert (status, again["param"]) == (400, "lora_name")
    assert post(server, "unload_lora_adapter", lora_name="style")[0] == 200
    with pytest.raises(
        openai.NotFoundError, match=r"'style' is not served here; served: tiny, first"
    ):
        tokens(client, "style", prompt)
    status, answer = post(server, "unload_lora_adapter", lora_name="style")
    assert (status, answer["code"]) == (404, "adapter_not_found")


def test_what_is_refused_says_why_and_changes_nothing(server, client, peft, tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "use_dora": true}')
    (tmp_path / "adapter_model.bin").write_bytes(b"pickle")
    path = str(tmp_path)
    status, error = post(server, "load_lora_adapter", lora_name="bad", lora_path=path)
    assert (status, error["param"]) == (400, "lora_path")
    assert "adapter_model.bin can run code" in error["message"]
    (tmp_path / "adapter_model.safetensors").write_bytes(
        Path(peft.path("a4"), "adapter_model.safetensors").read_bytes()
    )
    error = post(server, "load_lora_adapter", lora_name="bad", lora_path=path)[1]
    assert "use_dora=True is not supported" in error["message"]
    error = post(server, "load_lora_adapter", lora_name="tiny", lora_path=path)[1]
    assert "a name of the model itself" in error["message"]
    error = post(server, "load_lora_adapter", lora_name="x" * 129, lora_path=path)[1]
    assert error["param"] == "lora_name"
    assert post(server, "load_lora_adapter", key="x", lora_name="a", lora_path=path)[0] == 401
    assert {card.id for card in client.models.list()} == {"tiny", "first"}


def test_adapters_of_the_folder_are_loaded_when_they_are_named(server, client, peft):
    """Two at a time: the one used longest ago makes room, and comes back when it is named again."""
    first, second, third = SHELF
    for name in (first, second, third, second, first, first):
        for _ in range(2):  # the second time from the prefix cache
            wanted = peft.generate(SHELF[name], prompt_of(7))
            assert tokens(client, name, prompt_of(7)) == wanted
    listed = {card.id for card in client.models.list()}
    assert listed == {"tiny", "first", first, second}
    with ThreadPoolExecutor(6) as threads:
        turns = [first, second] * 3
        found = list(threads.map(lambda name: tokens(client, name, prompt_of(9)), turns))
    assert found == [peft.generate(SHELF[name], prompt_of(9)) for name in turns]
    for name in (first, second):
        assert post(server, "unload_lora_adapter", lora_name=name)[0] == 200


@pytest.mark.parametrize(
    "name",
    [
        "link",
        "../adapters0/a3",
        "..",
        ".",
        "/etc",
        "style one/",
        "style\\\\one",
        "missing",
        "x" * 200,
    ],
)
def test_nothing_else_in_or_beside_the_folder_has_a_name(client, name):
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        tokens(client, name, prompt_of(1))


def test_one_that_cannot_be_served_says_no_more_than_that(server, client, shelf):
    with pytest.raises(
        openai.BadRequestError, match="'broken' cannot be served; see the server's log"
    ) as raised:
        tokens(client, "broken", prompt_of(1))
    assert str(shelf) not in str(raised.value)
    server.wait_for("(adapter broken) in the folder cannot be served: ")


def test_requests_that_run_are_counted_by_adapter(server, client, peft):
    def ask(number):
        return client.completions.create(
            model="first", prompt=prompt_of(number), max_tokens=40, **BODY
        )

    seen = 0.0
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            asked = [threads.submit(ask, number) for number in range(8)]
            while not all(each.done() for each in asked):
                seen = max(seen, running(metrics(server), "first"))
            if seen:
                break
    assert 0 < seen <= 8
    assert re.search(r'vllm:lora_requests_info\{[^}]*max_lora="3"', metrics(server))


def metrics(server):
    request = urllib.request.Request(
        f"{server.url}/metrics", headers={"authorization": f"Bearer {KEY}"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read().decode()


def running(text, name):
    labels = rf'[^}}]*lora_name="{name}"[^}}]*'
    found = re.search(rf"^tenonry:lora_requests_running\{{{labels}\}} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


SETTINGS = {
    "dtype": "float32", "device": "cpu", "max_num_seqs": 6, "max_model_len": 64, "block_size": 4,
    "skip_tokenizer_init": True,
}  # fmt: skip
GREEDY = SamplingParams(temperature=0.0, max_tokens=lora.NUM_TOKENS, ignore_eos=True)


def offline(llm, prompts, adapter=None):
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [output.outputs[0].token_ids for output in llm.generate(given, GREEDY, adapter=adapter)]


DEEP = """
from tenonry_worker_torch.worker import TorchWorker

class TwoSteps(TorchWorker):
    steps_in_flight = 2
"""
WAYS = {
    "whole prompts": {},
    "preemption, chunks and two steps in flight": {
        "num_gpu_blocks_override": 22,
        "max_num_batched_tokens": 11,
        "worker": "{folder}/deep.py:TwoSteps",
    },
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.nightly_after(1)
def test_offline_with_a_prefix_cache(folder, peft, way, tmp_path):
    (tmp_path / "deep.py").write_text(DEEP)
    ways = dict(WAYS[way])
    if "worker" in ways:
        ways["worker"] = ways["worker"].format(folder=tmp_path)
    shared = prompt_of(30)[:16]
    prompts = [shared + prompt_of(number)[:8] for number in range(4)]
    with LLM(model=str(folder), max_loras=2, **SETTINGS, **ways) as llm:
        for name in ("a2", "a16"):
            adapter = llm.add_lora("style", peft.path(name))
            wanted = [peft.generate(name, prompt) for prompt in prompts]
            assert offline(llm, prompts, adapter) == wanted
            assert offline(llm, prompts, adapter) == wanted
            assert offline(llm, prompts) == [peft.generate(None, prompt) for prompt in prompts]
        assert [each.name for each in llm.list_loras()] == ["style"]
        llm.remove_lora("style")
        (failed,) = llm.generate([{"prompt_token_ids": shared}], GREEDY, adapter=adapter)
        assert failed.outputs[0].finish_reason == "error"
        assert "is not loaded" in failed.error


def test_requests_name_adapters_as_those_of_vllm(folder, peft):
    """`lora_request` loads on first use, then does what `adapter` does; a name in use has one folder."""
    prompt = prompt_of(31)
    given = [{"prompt_token_ids": prompt}]
    one = LoRARequest("style", 1, peft.path("a2"))
    with LLM(
        model=str(folder), max_loras=2, lora_modules=(f"first={peft.path('a3')}",), **SETTINGS
    ) as llm:

        def tokens(request):
            return llm.generate(given, GREEDY, lora_request=request)[0].outputs[0].token_ids

        assert tokens(one) == tokens(one) == peft.generate("a2", prompt)
        assert tokens(LoRARequest("first", 7)) == peft.generate("a3", prompt)
        assert tokens(None) == peft.generate(None, prompt)
        together = llm.generate(
            given * 3, GREEDY, lora_request=[None, one, LoRARequest("first", 7)]
        )
        assert [each.outputs[0].token_ids for each in together] == [
            peft.generate(name, prompt) for name in (None, "a2", "a3")
        ]
        with pytest.raises(ConfigError, match="adapter has 2 values for 1 prompts"):
            tokens([one, one])
        assert [each.name for each in llm.list_loras()] == ["first", "style"]
        for name, loaded_from in (("style", "a2"), ("first", "a3")):
            with pytest.raises(RequestError, match=f"was loaded from .*{loaded_from}"):
                tokens(LoRARequest(name, 1, peft.path("a16")))
        with pytest.raises(RequestError, match="no adapter is called 'none'; loaded: first, style"):
            tokens(LoRARequest("none", 2))
        replaced = LoRARequest("style", 1, peft.path("a16"), load_inplace=True)
        assert tokens(replaced) == peft.generate("a16", prompt)
        llm.remove_lora("style")
        assert tokens(one) == peft.generate("a2", prompt)


def test_streams_name_adapters_as_those_of_vllm(folder, peft):
    prompt = prompt_of(32)

    async def main():
        config = EngineConfig(model=str(folder), max_loras=2, **SETTINGS)
        engine = AsyncLLM.from_config(config)

        async def tokens(number, request):
            given = {"prompt_token_ids": prompt}
            async for output in engine.generate(given, GREEDY, str(number), lora_request=request):
                last = output
            return last.outputs[0].token_ids

        try:
            one = LoRARequest("style", 1, peft.path("a2"))
            first = await asyncio.gather(*(tokens(number, one) for number in range(3)))
            assert len(await engine.list_loras()) == 1
            with pytest.raises(RequestError, match="give another name, or load_inplace=True"):
                await tokens(4, LoRARequest("style", 1, peft.path("a16")))
            await engine.remove_lora("style")
            return [*first, await tokens(5, one), await tokens(6, None)]
        finally:
            engine.shutdown()

    *adapted, plain = asyncio.run(main())
    assert adapted == [peft.generate("a2", prompt)] * 4
    assert plain == peft.generate(None, prompt)


@pytest.fixture(scope="module")
def other(folder, tmp_path_factory):
    """(peft on other weights, a file with these): the adapters are the same."""
    made = tmp_path_factory.mktemp("other")
    model = families.build("llama")
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.add_(torch.randn_like(weight) * weight.std())
    model.save_pretrained(made / "model")
    return lora.Peft(model, made / "adapters", RANKS), made / "model" / "model.safetensors"


@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("forked_children")
def test_new_weights_and_level_2_on_two_ranks(folder, peft, other):
    """AF-14: adapters stay, and the weights under them change and come back."""
    prompts = [prompt_of(number) for number in range(2)]
    on_others, source = other
    settings = SETTINGS | {"executor": "mp", "tensor_parallel_size": 2, "max_loras": 2}
    with LLM(model=str(folder), **settings) as llm:
        adapter = llm.add_lora("style", peft.path("a16"))

        def check(reference):
            for chosen, name in ((adapter, "a16"), (None, None)):
                wanted = [reference.generate(name, prompt) for prompt in prompts]
                assert offline(llm, prompts, chosen) == wanted

        check(peft)
        llm.update_weights(str(source), version="other")
        check(on_others)
        llm.sleep(2)
        llm.wake_up()
        check(peft)
        llm.update_weights(str(source), version="again")
        check(on_others)
        assert llm.list_loras() == [adapter]


def test_a_worker_without_adapters_refuses_the_setting_by_name(folder):
    with pytest.raises(ConfigError, match=r"max_loras=2: .* lacks the capability 'lora'"):
        LLM(model=str(folder), worker="transformers", max_loras=2, **SETTINGS)


def test_requests_of_an_engine_that_serves_none_are_refused(folder):
    with LLM(model=str(folder), **SETTINGS) as llm:
        failed = llm.generate([{"prompt_token_ids": [5]}], GREEDY, adapter=Adapter("a", "0"))
        assert "does not support 'lora'" in str(failed[0].error)
