"""Uninitialised memory reaches no client (class P).

Every array that torch or numpy allocates uninitialised is filled with a canary, also inside torch's own operations:
NaN, or the largest integer; other memory from malloc is filled with 0x7f. Tokens, log-probabilities, vectors and saved
K/V are those of a run without canaries.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "integration"))
sys.path.append(str(Path(__file__).parents[2] / "plugins" / "worker-torch" / "tests"))

import shallow_demo
import state_families
import worker_families

from tenonry import LLM, SamplingParams
from tenonry.sampling_params import StructuredOutput
from tenonry_worker_torch_cpu.kernels import rows, trial

pytestmark = pytest.mark.timeout(120)
# By name, kernels do not depend on how long trials took.
WORKER = {"name": "torch", "options": {"step_kernels": "cpu"}}
INTEGER = 0x7F  # in each byte
STORY = "Once upon a time there was a young fox who lived near the harbour. "
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (STORY, {"temperature": 0}),
    (STORY * 3, {"temperature": 0, "logprobs": 3}),
    (STORY * 3, {"temperature": 0.8, "seed": 5, "top_p": 0.9, "top_k": 50}),
    ("Hello", {"temperature": 0, "prompt_logprobs": 2}),
    ("Hello", {"temperature": 1, "seed": 9, "min_p": 0.05, "n": 3}),
    ("What is", {"temperature": 0, "presence_penalty": 1.0, "frequency_penalty": 0.5}),
    ("What is", {"temperature": 0, "repetition_penalty": 1.3, "min_tokens": 8}),
    ("The", {"temperature": 0, "logit_bias": {500: 3.0}, "bad_words": ["the"]}),
    ("A", {"temperature": 0, "allowed_token_ids": list(range(300, 900))}),
    (
        "Say",
        {"temperature": 0, "structured_output": StructuredOutput(regex="[a-z]{3,9}( [a-z]+){2}")},
    ),
    (STORY, {"temperature": 0, "stop": ["fox", "harbour."]}),
]
FAMILIES = [
    "gpt_oss",
    "gemma3n",
    "qwen3_moe",
    "deepseek_v3",
    *[name for name in state_families.FAMILIES if name in {"lfm2", "mamba2", "qwen3_next"}],
]
SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
M_PERTURB = -6  # of mallopt: fill what malloc returns
PERTURBED = 0x80  # with the complement of this byte


def filled(real: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def empty(*arguments: Any, **options: Any) -> np.ndarray:
        made = real(*arguments, **options)
        if made.dtype.kind == "f":
            made.fill(np.nan)
        elif made.dtype.kind in "iub" and made.size:
            made.reshape(-1).view(np.uint8).fill(INTEGER)
        return made

    return empty


@contextmanager
def canaries(is_on: bool) -> Iterator[None]:
    """Fill uninitialised arrays of numpy and torch. Both runs use torch's deterministic operations, which can."""
    perturb = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc alone
    torch.use_deterministic_algorithms(True, warn_only=True)
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = is_on
    if perturb is not None and is_on:
        perturb(M_PERTURB, PERTURBED)
    try:
        with pytest.MonkeyPatch.context() as patch:
            if is_on:
                for name in ("empty", "empty_like"):
                    patch.setattr(np, name, filled(getattr(np, name)))
            yield
    finally:
        if perturb is not None:
            perturb(M_PERTURB, 0)
        torch.utils.deterministic.fill_uninitialized_memory = before
        torch.use_deterministic_algorithms(False)


def unchanged(compute: Callable[[], Any]) -> Any:
    """The result of `compute`, which is the same with canaries."""
    with canaries(is_on=False):
        expected = compute()
    with canaries(is_on=True):
        assert torch.empty(3).isnan().all()
        assert np.isnan(np.empty(3)).all()
        found = compute()
    assert found == expected
    return expected


def answers(model: str, **settings: Any) -> list[Any]:
    """Texts, tokens and log-probabilities; twice, so that prompts are found in the prefix cache, of three rows."""
    made = []
    fields = {
        "device": "cpu",
        "max_num_seqs": 3,
        "max_model_len": 512,
        "num_gpu_blocks_override": 100,
    }
    with LLM(model=model, **fields | settings) as llm:
        prompts = [prompt for prompt, _ in REQUESTS]
        params = [SamplingParams(max_tokens=12, **fields) for _, fields in REQUESTS]
        for _ in range(2):
            for output in llm.generate(prompts, params, use_tqdm=False):
                assert output.error is None, output.error
                made.append(repr(output.prompt_logprobs))
                made += [
                    (each.text, each.token_ids, repr(each.logprobs)) for each in output.outputs
                ]
    assert "nan" not in repr(made)
    return made


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are chosen by time, and round in ways of their own: each call takes a second here, in every start."""
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)
    for module in (rows, trial):
        monkeypatch.setattr(module, "time", clock)


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> str:
    return str(shallow_demo.save(tmp_path_factory.mktemp("canary") / "model", num_layers=2))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float32", "drafter": "ngram"},
        {"dtype": "bfloat16", "quantization": "int4", "kv_cache_dtype": "int8"},
    ],
    ids=["drafts", "quantized"],
)
def test_no_canary_in_answers(demo, settings, steady_clock):
    unchanged(lambda: answers(demo, **settings))


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_canary_in_tokens_of_other_layers(family, tmp_path):
    """Sinks, shared K/V, experts, latent attention, recurrent states."""
    worker_families.save(family, tmp_path)
    rng = np.random.default_rng(0)
    prompts = [{"prompt_token_ids": rng.integers(3, 96, size).tolist()} for size in (5, 17, 1, 33)]
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=2, ignore_eos=True)

    def tokens() -> list[Any]:
        settings = {"worker": WORKER, "io_processor": "none", "num_gpu_blocks_override": 60}
        with LLM(
            model=str(tmp_path), max_model_len=64, max_num_seqs=3, device="cpu", **settings
        ) as llm:
            found = [each.outputs[0] for each in llm.generate(prompts, params, use_tqdm=False)]
        return [(each.token_ids, repr(each.logprobs)) for each in found]

    assert "nan" not in repr(unchanged(tokens))


@pytest.mark.parametrize("is_decoder", [False, True])
def test_no_canary_in_vectors(is_decoder, tmp_path):
    transformers = pytest.importorskip("transformers")
    kind = transformers.Qwen3Model if is_decoder else transformers.BertModel
    heads = {"num_key_value_heads": 2, "head_dim": 8} if is_decoder else {}
    torch.manual_seed(0)
    kind(kind.config_class(**SMALL, **heads)).eval().save_pretrained(tmp_path)
    rng = np.random.default_rng(0)
    prompts = [{"prompt_token_ids": rng.integers(4, 96, size).tolist()} for size in (5, 1, 40, 17)]

    def vectors() -> list[bytes]:
        worker = {"name": "pooling", "options": {"pooling": "mean"}}
        settings = {"worker": worker, "io_processor": "none", "max_num_batched_tokens": 16}
        with LLM(model=str(tmp_path), device="cpu", max_num_seqs=3, **settings) as llm:
            found = [each.data for each in llm.embed(prompts)]
        assert all(np.isfinite(each).all() for each in found)
        return [each.tobytes() for each in found]

    unchanged(vectors)


def content_of(block: bytes) -> bytes:
    """K/V of a file of the connector `disk`, behind the header, which ends with their length and a checksum."""
    name_bytes = int.from_bytes(block[12:16], "little")
    return block[16 + name_bytes + 32 + 8 + 16 :]


def test_no_canary_in_saved_blocks(tmp_path):
    """Blocks of a KV connector's files, and a second engine's results on top of them."""
    worker_families.save("llama", tmp_path / "model")
    prompts = [{"prompt_token_ids": list(range(3, 3 + size))} for size in (5, 37, 61)]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    folders = iter(["plain", "canary"])

    def blocks() -> list[Any]:
        root = tmp_path / next(folders)
        root.mkdir(mode=0o700)
        connector = {"name": "disk", "options": {"directory": str(root)}}
        found: list[Any] = []
        for _ in range(2):
            with LLM(
                model=str(tmp_path / "model"),
                io_processor="none",
                worker=WORKER,
                device="cpu",
                max_model_len=96,
                num_gpu_blocks_override=60,
                kv_connector=connector,
            ) as llm:
                found += [each.outputs[0].token_ids for each in llm.generate(prompts, params)]
        saved = [path.read_bytes() for path in root.rglob("*.block")]
        assert saved
        return [found, sorted(map(content_of, saved))]

    _, saved = unchanged(blocks)
    assert all(np.isfinite(np.frombuffer(each, np.float32)).all() for each in saved)
