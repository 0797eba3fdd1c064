"""New weights, pauses, sleep and profiles through a real server, as a trainer uses it (AF-14, AF-16, AF-17). The oracle
is `generate` of transformers.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file
from server_process import ForkedServer
from transformers import LlamaConfig, LlamaForCausalLM

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("one_thread")]
KEY = "of-the-trainer"
PROMPT = [5, 17, 33, 8]
LENGTH = 24
STREAM_LENGTH = 400


def random_model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, weight.shape[-1] ** -0.5)
    return model


def greedy(model, prompt) -> list[int]:
    made = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=LENGTH,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return made[0, len(prompt) :].tolist()


@torch.no_grad()
def chosen(model, tokens: list[int]) -> list[int]:
    """The model's choice after each token behind the prompt, except for the last token."""
    logits = model(torch.tensor([tokens])).logits[0]
    return logits.argmax(-1)[len(PROMPT) - 1 : -1].tolist()


class Trainer:
    """A server, its operator routes, and the weights it should have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_changed = False
        self.first = random_model(0)
        self.first.save_pretrained(folder / "model")
        (folder / "updates").mkdir()
        self.server = ForkedServer(
            folder / "model", "--load-format", "auto", "--skip-tokenizer-init", "--dtype", "float32", "--device", "cpu",
            "--max-num-seqs", "4", "--max-model-len", "512",
            "--num-gpu-blocks-override", "256", "--api-key", KEY, "--enable-operator-routes",
            "--weight-source", str(folder / "updates"), "--weight-source", "shm:tenonry-test-", "--no-log-stats",
            "--worker-option", f"profile_dir={folder / 'profiles'}", "--worker-option", "profile_gzip=false",
            "--front-end-profile-dir", str(folder / "profiles"),
        )  # fmt: skip
        self.server.ready()

    def call(self, path: str, key: str | None = KEY, **body) -> tuple[int, dict]:
        headers = {"content-type": "application/json"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        data = None if path == "/is_sleeping" else json.dumps(body).encode()
        request = urllib.request.Request(self.server.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def does(self, path: str, **body) -> dict:
        status, answer = self.call(path, **body)
        assert status == 200, f"{answer}\n{self.server.output}"
        self.is_changed |= path == "/update_weights"
        return answer

    def complete(self, count=LENGTH, **fields):
        with self.server.client(KEY) as client:
            return client.completions.create(
                model="tiny",
                prompt=PROMPT,
                max_tokens=count,
                temperature=0,
                extra_body={"ignore_eos": True, "return_token_ids": True, **fields},
            )

    def tokens(self) -> list[int]:
        return self.complete().choices[0].token_ids

    def save(self, model, name: str) -> str:
        path = self.folder / "updates" / name
        save_file(dict(model.state_dict()), path)
        return str(path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[Trainer]:
    found = Trainer(tmp_path_factory.mktemp("weights"))
    yield found
    found.server.close()


@pytest.fixture
def trainer(shared) -> Trainer:
    """With the weights of its checkpoint again."""
    if shared.is_changed:
        shared.does("/sleep", level=2)
        shared.does("/wake_up")
        shared.is_changed = False
    return shared


def test_a_stream_goes_on_with_the_weights_that_came_while_it_was_paused(trainer):
    new = random_model(1)
    source = trainer.save(new, "second.safetensors")
    with trainer.server.client(KEY) as client:
        stream = client.completions.create(
            model="tiny",
            prompt=PROMPT,
            max_tokens=STREAM_LENGTH,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        chunks = [next(stream)]
        trainer.does("/pause", mode="keep")
        trainer.does("/update_weights", source=source, version="step-2")
        trainer.does("/resume")
        chunks += list(stream)
    made = [token for chunk in chunks for token in chunk.choices[0].token_ids]
    assert chunks[-1].weight_version == "step-2"
    assert len(made) == STREAM_LENGTH
    before = chosen(trainer.first, PROMPT + made)
    after = chosen(new, PROMPT + made)
    changes = range(1, STREAM_LENGTH)
    assert any(made[:at] == before[:at] and made[at:] == after[at:] for at in changes)
    assert made not in (before, after)
    answer = trainer.complete()
    assert answer.choices[0].token_ids == greedy(new, PROMPT)
    assert answer.weight_version == "step-2"


@pytest.mark.parametrize("level", [1, 2])
def test_requests_that_come_during_sleep_wait(trainer, level):
    trainer.does("/sleep", level=level)
    assert trainer.does("/is_sleeping") == {"is_sleeping": True}
    answers: list[list[int]] = []
    thread = threading.Thread(target=lambda: answers.append(trainer.tokens()))
    thread.start()
    thread.join(0.5)
    assert answers == []
    trainer.does("/wake_up", tags=["weights"])
    assert trainer.does("/is_sleeping") == {"is_sleeping": True}
    trainer.does("/wake_up", tags=["kv_cache"])
    thread.join(20)
    assert answers == [greedy(trainer.first, PROMPT)]
    assert trainer.does("/is_sleeping") == {"is_sleeping": False}


def test_some_weights_from_shared_memory(trainer):
    new = random_model(0)
    with torch.no_grad():
        for layer in new.model.layers:
            layer.self_attn.k_proj.weight.normal_(0.0, 0.3)
    names = [f"model.layers.{number}.self_attn.k_proj.weight" for number in range(2)]
    data = save({name: weight for name, weight in new.state_dict().items() if "k_proj" in name})
    # What `shm_open` would name; `multiprocessing` starts a process of its own to watch over its segments.
    segment = Path("/dev/shm/tenonry-test-keys")
    segment.write_bytes(data)
    try:
        trainer.does("/update_weights", source="shm:tenonry-test-keys", names=names, version="k")
    finally:
        segment.unlink()
    assert trainer.tokens() == greedy(new, PROMPT) != greedy(trainer.first, PROMPT)


def test_a_profile_shows_the_rank_and_the_event_loop_on_one_clock(trainer):
    status, answer = trainer.call("/stop_profile")
    assert (status, "no profile runs" in answer["error"]["message"]) == (409, True)
    trainer.does("/start_profile")
    status, answer = trainer.call("/start_profile")
    assert (status, "a profile runs already" in answer["error"]["message"]) == (409, True)
    tokens = trainer.tokens()
    trainer.does("/stop_profile")
    assert tokens == greedy(trainer.first, PROMPT)
    paths = list((trainer.folder / "profiles").iterdir())
    (own,) = [path for path in paths if path.name.endswith(".api-server 0.0.trace.json")]
    (rank,) = [path for path in paths if path.name.endswith(".engine0.rank0.0.pt.trace.json")]
    assert f"_{trainer.server.process.pid}." in own.name
    front, back = json.loads(own.read_text()), json.loads(rank.read_text())
    assert front["baseTimeNanoseconds"] == back["baseTimeNanoseconds"]
    calls = [each for each in front["traceEvents"] if each["ph"] == "X"]
    assert {each["pid"] for each in calls} == {trainer.server.process.pid}
    (answered,) = {each["tid"] for each in calls if each["name"].endswith("AsyncLLM.generate")}
    assert {each["tid"] for each in calls} == {answered}
    began = min(each["ts"] for each in calls)
    ended = max(each["ts"] + each["dur"] for each in calls)
    steps = [each["ts"] for each in back["traceEvents"] if each["name"].startswith("aten::")]
    assert steps
    assert all(began < step < ended for step in steps)


class TestRefusals:
    """A rejected update changes nothing."""

    @pytest.fixture(autouse=True)
    def unchanged(self, trainer) -> Iterator[None]:
        yield
        answer = trainer.complete()
        assert answer.choices[0].token_ids == greedy(trainer.first, PROMPT)
        assert "weight_version" not in (answer.model_extra or {})

    def test_updates_that_do_not_fit_are_named(self, trainer):
        state = dict(random_model(2).state_dict())
        short = trainer.folder / "updates" / "half.safetensors"
        short.write_bytes(save(state)[:-100])
        wide = trainer.folder / "updates" / "wide.safetensors"
        save_file(state | {"lm_head.weight": torch.zeros(96, 33)}, wide)
        strange = trainer.folder / "updates" / "strange.safetensors"
        save_file({"model.layers.7.mlp.up_proj.weight": torch.zeros(64, 32)}, strange)
        whole = trainer.save(random_model(2), "whole.safetensors")
        for source, names, said in [
            (short, None, "truncated"),
            (wide, None, "lm_head.weight is [96, 33]"),
            (strange, None, "has no place"),
            (whole, ["lm_head.bias"], "does not hold 'lm_head.bias'"),
        ]:
            status, answer = trainer.call(
                "/update_weights", source=str(source), names=names, version="bad"
            )
            assert status == 409
            assert said in answer["error"]["message"]

    def test_sources_that_the_operator_did_not_list(self, trainer):
        outside = trainer.folder / "outside.safetensors"
        save_file({"x": torch.zeros(1)}, outside)
        link = trainer.folder / "updates" / "link.safetensors"
        link.unlink(missing_ok=True)
        link.symlink_to(outside)
        climbing = f"{trainer.folder}/updates/../outside.safetensors"
        for source in (
            outside,
            link,
            climbing,
            "/dev/shm/x",
            "shm:other",
            "shm:tenonry-test-/../x",
        ):
            status, answer = trainer.call("/update_weights", source=str(source))
            assert (status, answer["error"]["code"]) == (403, "source_not_allowed")
        link.unlink()

    def test_callers_without_the_key(self, trainer):
        for path in ("/sleep", "/update_weights", "/pause", "/scale"):
            assert trainer.call(path, key=None)[0] == 401
