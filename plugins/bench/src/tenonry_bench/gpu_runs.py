"""Parts of `tenonry bench gpu`: the device, tokens compared with the CPU's, timed steps, a profile. The measuring
process.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from tenonry.errors import ConfigError
from tenonry.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tenonry.client.llm import LLM

GB = 1e9
READ_BYTES = {"cpu": 1 << 26, "cuda": 1 << 32}  # of the measured read
READS = 5
SHORT = 4  # tokens of the shorter of two answers, whose difference is decoding alone
TOP = 12
PROMPT_LENGTHS = (1, 5, 17, 97)
SHARED_PREFIX = 64
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"temperature": 0.0}, {}),
    "temperature": ({"temperature": 0.9, "seed": 4}, {}),
    "top_p": ({"temperature": 1.0, "top_p": 0.8, "seed": 1}, {}),
    "top_k, min_p": ({"temperature": 1.0, "top_k": 7, "min_p": 0.05, "seed": 2}, {}),
    "penalties": (
        {"temperature": 0.0, "presence_penalty": 0.6, "frequency_penalty": 0.3, "repetition_penalty": 1.2},
        {},
    ),
    "log-probabilities": ({"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 2}, {}),
    "chunks": ({"temperature": 0.0}, {"max_num_batched_tokens": 32}),
    "launched": ({"temperature": 0.0}, {"enforce_eager": True}),
    "K/V in int8": ({"temperature": 0.0}, {"kv_cache_dtype": "int8"}),
    "K/V in fp8": ({"temperature": 0.0}, {"kv_cache_dtype": "fp8"}),
}  # fmt: skip
TIMED: dict[str, dict[str, Any]] = {
    "temperature 1": {"temperature": 1.0},
    "top_p 0.9": {"temperature": 0.8, "top_p": 0.9},
    "presence_penalty 0.5": {"temperature": 0.0, "presence_penalty": 0.5},
}


class DeviceFacts(msgspec.Struct, kw_only=True):
    """`read_gb_s`: measured by a sum over memory that no cache holds."""

    device: str
    name: str
    torch: str
    cuda: str | None
    triton: str | None
    capability: str | None
    memory_gib: float | None
    read_gb_s: float


class Answers(msgspec.Struct, kw_only=True):
    """`same`: tokens equal those on the CPU. `agreed`: leading ones of each request that do."""

    way: str
    same: bool
    agreed: list[int]

    @property
    def text(self) -> str:
        return f"{self.way} DIFFERS after {min(self.agreed)} tokens"


class StepTime(msgspec.Struct, kw_only=True):
    """A decoding step: the time of long answers less that of short ones. `floor_ms`: the reads of weights and K/V."""

    rows: int
    params: str
    step_ms: float
    first_ms: float  # of the run before, whose shapes were new
    floor_ms: float
    share: float
    tok_s: float


class Operation(msgspec.Struct, kw_only=True):
    """`ms` on the device, or on the CPU where there is none."""

    name: str
    calls: int
    ms: float


class Profile(msgspec.Struct, kw_only=True):
    """Operations of torch, launches and waits of the host in one run, and the longest operations."""

    rows: int
    operations: int
    launches: int
    waits: int
    top: list[Operation]


def device_facts(wanted: str) -> DeviceFacts:
    """The device to measure. Raises ConfigError for one that is not there."""
    import torch

    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ConfigError(f"--device {wanted}: cpu, cuda or cuda:N is measured") from None
    kind = device.type
    if kind not in READ_BYTES:
        raise ConfigError(f"--device {wanted}: cpu, cuda or cuda:N is measured")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"--device {wanted}: torch {torch.__version__} sees no GPU; use --device cpu to rehearse"
        )
    if kind == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"--device {wanted}: this machine has cuda:0 to cuda:{count - 1}")
    properties = torch.cuda.get_device_properties(wanted) if kind == "cuda" else None
    return DeviceFacts(
        device=wanted,
        name="CPU (a rehearsal)" if properties is None else properties.name,
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        triton=version_of("triton"),
        capability=None if properties is None else f"{properties.major}.{properties.minor}",
        memory_gib=None if properties is None else round(properties.total_memory / 2**30, 1),
        read_gb_s=read_speed(wanted),
    )


def version_of(name: str) -> str | None:
    """Version of an installed distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_speed(device: str) -> float:
    """GB/s of the quickest of some reads."""
    import torch

    nbytes = READ_BYTES[torch.device(device).type]
    memory = torch.zeros(nbytes // 4, dtype=torch.float32, device=device)
    best = float("inf")
    for _ in range(READS):
        began = time.perf_counter()
        float(memory.sum())
        best = min(best, time.perf_counter() - began)
    return nbytes / best / GB


@contextmanager
def engine(folder: Path, **settings: Any) -> Iterator[LLM]:
    """An engine in this process, gone with its memory afterwards."""
    from tenonry.client.llm import LLM

    given = {
        "io_processor": "none",
        "load_format": "dummy",
        "log_stats": False,
        "seed": 0,
    } | settings
    llm = LLM(str(folder), **given)
    try:
        yield llm
    finally:
        llm.shutdown()
        del llm
        gc.collect()


def answers(llm: LLM, prompts: Sequence[list[int]], **params: Any) -> list[list[int]]:
    """Tokens of each prompt."""
    wish = SamplingParams(ignore_eos=True, detokenize=False, **params)
    given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [list(each.outputs[0].token_ids) for each in llm.generate(given, wish, use_tqdm=False)]


def config_of(folder: Path) -> dict[str, Any]:
    """A shape as it was written."""
    made: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return made


def random_prompts(lengths: Sequence[int], vocab_size: int) -> list[list[int]]:
    """Prompts that are the same in each run."""
    source = random.Random(3)  # noqa: S311 - no secret
    return [[source.randrange(3, vocab_size) for _ in range(length)] for length in lengths]


def compared(folder: Path, device: str) -> list[Answers]:
    """Each kind of request on the CPU and on the device, in float32."""
    vocab_size = config_of(folder)["vocab_size"]
    *prompts, shared = random_prompts((*PROMPT_LENGTHS, SHARED_PREFIX), vocab_size)
    prompts += [shared + prompts[1], shared]
    found: list[Answers] = []
    by_settings: dict[str, list[str]] = {}
    for way, (_, settings) in WAYS.items():
        by_settings.setdefault(json.dumps(settings), []).append(way)
    for settings, ways in by_settings.items():
        on_cpu, on_device = (
            _of_ways(folder, where, json.loads(settings), ways, prompts)
            for where in ("cpu", device)
        )
        found += [_compared(way, on_cpu[way], on_device[way]) for way in ways]
    return found


def _of_ways(
    folder: Path, device: str, settings: dict[str, Any], ways: list[str], prompts: list[list[int]]
) -> dict[str, list[list[int]]]:
    """Answers by way; the second half are of the same prompts in reverse, from the prefix cache."""
    common = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 8}
    with engine(folder, device=device, **common, **settings) as llm:
        return {
            way: [
                tokens
                for order in (prompts, prompts[::-1])
                for tokens in answers(llm, order, max_tokens=12, **WAYS[way][0])
            ]
            for way in ways
        }


def _compared(way: str, wanted: list[list[int]], made: list[list[int]]) -> Answers:
    agreed = [
        next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))
        for one, other in zip(wanted, made, strict=True)
    ]
    return Answers(way=way, same=wanted == made, agreed=agreed)


def timed(
    folder: Path, facts: DeviceFacts, dtype: str, rows: Sequence[int], lengths: tuple[int, int]
) -> tuple[list[StepTime], Profile | None]:
    """Steps of one engine, and the profile of a run at the middle number of rows."""
    middle = sorted(rows)[len(rows) // 2]
    prompt_len, output_len = lengths
    settings = {"max_model_len": prompt_len + output_len + SHORT, "max_num_seqs": max(rows)}
    with engine(
        folder, device=facts.device, dtype=dtype, enable_prefix_caching=False, **settings
    ) as llm:
        run = StepTimer(llm, folder, facts, dtype, lengths)
        steps = [run.step(count, "greedy", {"temperature": 0.0}) for count in rows]
        steps += [run.step(middle, name, params) for name, params in TIMED.items()]
        return steps, profiled(llm, run.prompts(middle), facts.device)


class StepTimer:
    """Times decoding steps of an engine."""

    def __init__(
        self, llm: LLM, folder: Path, facts: DeviceFacts, dtype: str, lengths: tuple[int, int]
    ) -> None:
        self._llm = llm
        self._config = config_of(folder)
        self._read = facts.read_gb_s * GB
        self._itemsize = 4 if dtype == "float32" else 2
        self._prompt_len, self._output_len = lengths

    def prompts(self, rows: int) -> list[list[int]]:
        return random_prompts([self._prompt_len] * rows, self._config["vocab_size"])

    def step(self, rows: int, name: str, params: dict[str, Any]) -> StepTime:
        """The second of two runs counts; the first one's shapes are new."""
        first, second = (self._decode(rows, params) for _ in range(2))
        floor = self.floor(rows)
        return StepTime(
            rows=rows,
            params=name,
            step_ms=second * 1e3,
            first_ms=first * 1e3,
            floor_ms=floor * 1e3,
            share=floor / second,
            tok_s=rows / second,
        )

    def _decode(self, rows: int, params: dict[str, Any]) -> float:
        prompts = self.prompts(rows)
        times = []
        for tokens in (SHORT, SHORT + self._output_len):
            began = time.perf_counter()
            answers(self._llm, prompts, max_tokens=tokens, **params)
            times.append(time.perf_counter() - began)
        return max(times[1] - times[0], 1e-9) / self._output_len

    def floor(self, rows: int) -> float:
        """Seconds to read the weights once, and K/V of all rows at the middle of their answers."""
        each = self._config
        hidden, layers, inner = (
            each[name] for name in ("hidden_size", "num_hidden_layers", "intermediate_size")
        )
        head = each["head_dim"]
        kv = each["num_key_value_heads"] * head
        query = each["num_attention_heads"] * head
        of_layer = hidden * (2 * query + 2 * kv + 3 * inner)
        weights = layers * of_layer + hidden * each["vocab_size"]
        context = self._prompt_len + self._output_len / 2
        return (weights + rows * context * 2 * kv * layers) * self._itemsize / self._read


def profiled(llm: LLM, prompts: list[list[int]], device: str) -> Profile:
    """One short greedy run under torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    is_cpu = device == "cpu"
    kinds = [ProfilerActivity.CPU] if is_cpu else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=kinds) as seen:
        answers(llm, prompts, max_tokens=SHORT, temperature=0.0)
    events = [
        Operation(
            name=event.key,
            calls=event.count,
            ms=(event.self_cpu_time_total if is_cpu else event.self_device_time_total) / 1e3,
        )
        for event in seen.key_averages()
    ]
    return Profile(
        rows=len(prompts),
        operations=sum(each.calls for each in events if each.name.startswith("aten::")),
        launches=sum(each.calls for each in events if "Launch" in each.name),
        waits=sum(each.calls for each in events if each.name in WAITS),
        top=sorted(events, key=lambda each: -each.ms)[:TOP],
    )
