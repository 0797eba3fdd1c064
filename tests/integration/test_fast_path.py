"""Families of the fast path by name, each in every way of serving: greedy tokens equal transformers' `generate`, in
float32, if prompts come in chunks, share a beginning, are preempted, run together with aborted ones, have two
completions, or are computed with two steps in flight, or by two ranks.
"""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path

import pytest
import torch

from tenonry import LLM, SamplingParams
from tenonry.errors import TenonryError
from tenonry.kv_cache import sequence_pages
from tenonry_testkit.kernel.engine import Inbox, request
from tenonry_testkit.tiers import nightly_unless

# Processes that load torch start slowly where two cores are busy.
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("one_thread")]
HERE = Path(__file__).parent
WORKER_TESTS = HERE.parents[1] / "plugins" / "worker-torch" / "tests"

# The common name, that of the small model, and a seed with which no greedy choice is a close call: the two
# best logits are always at least 2/1000 of their spread apart.
FAMILIES = {
    "Qwen3-Next": ("qwen3_next", 0),
    "Qwen3.5": ("qwen3_5_text", 1),
    "gpt-oss": ("gpt_oss", 1),
    "Llama 4": ("llama4", 5),
    "Granite 4 hybrid": ("granitemoehybrid", 3),
    "Nemotron-H": ("nemotron_h", 1),
    "Mamba 2": ("mamba2", 6),
    "LFM2": ("lfm2", 0),
    "Falcon-H1": ("falcon_h1", 1),
    "Gemma 3": ("gemma3", 3),
    "Gemma 4": ("gemma4", 4),
    "DeepSeek V3.2": ("deepseek_v32", 0),
}
# State and sinks. The worker's own tests (`test_families`) have all of them.
USUAL = {"Qwen3-Next", "gpt-oss"}
NO_PLAN = {"gpt-oss", "Mamba 2", "LFM2", "Falcon-H1"}  # transformers gives none for cutting layers

LENGTHS = (5, 17, 1, 33, 9, 26)
SHARED = 24
OUTPUT_LENGTH = 12
SETTINGS = {
    "worker": "torch", "executor": "uni", "scheduler": "batching", "dtype": "float32", "device": "cpu",
    "max_num_seqs": 6, "max_model_len": 64, "block_size": 4, "skip_tokenizer_init": True, "log_stats": False,
}  # fmt: skip
# More requests than rows, and prompts longer than a step.
CHUNKS = {"max_num_batched_tokens": 8, "max_num_seqs": 4}
# Layers with state keep a copy of it at this interval of tokens.
SNAPSHOTS = {"name": "batching", "options": {"state_snapshot_interval": SHARED}}
FEW_BLOCKS = {"num_gpu_blocks_override": 22, "max_num_batched_tokens": 11}
DEEP = """
from tenonry_worker_torch.worker import TorchWorker

class TwoSteps(TorchWorker):
    steps_in_flight = 2
"""


def load(folder, name):
    """A module of other tests, by its own name."""
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


# The small models of the worker's own tests; those with state add theirs to the others.
models = load(WORKER_TESTS, "worker_families")
load(WORKER_TESTS, "state_families")
rank_pool = load(HERE, "rank_pool")


class Family:
    """One small model: its folder, reference answers of `generate`, and the engines that several tests share."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        small, seed = FAMILIES[name]
        self.folder = root / small
        self.module = models.build(small, seed=seed)
        self.module.save_pretrained(self.folder)
        self.deep = root / "deep.py"
        self.deep.write_text(DEEP)
        self.in_chunks = self.engine(**CHUNKS)
        self.in_flight = self.two_steps(**CHUNKS)

    @functools.cached_property
    def answers(self) -> list[list[int]]:
        return [self.answer(prompt) for prompt in PROMPTS]

    @functools.cached_property
    def answers_to_shared(self) -> list[list[int]]:
        return [self.answer(prompt) for prompt in ALIKE]

    def answer(self, prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        whole = self.module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=OUTPUT_LENGTH,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return whole[0, len(prompt) :].tolist()

    @functools.cached_property
    def few_blocks(self) -> dict[str, int]:
        """Settings with a pool too small for all requests; KV groups share it, and windows release blocks."""
        groups = self.in_chunks.engine_core.kv_cache.groups
        if not any(group.kind == "sliding" for group in groups):
            return FEW_BLOCKS
        blocks = sequence_pages(groups, 64, 4, FEW_BLOCKS["max_num_batched_tokens"])
        return FEW_BLOCKS | {"num_gpu_blocks_override": blocks}

    def engine(self, **settings) -> LLM:
        return LLM(model=str(self.folder), **(SETTINGS | settings))

    def two_steps(self, **settings) -> LLM:
        """An engine with two steps in flight: the second one is launched before the first one's tokens are known."""
        return self.engine(worker=f"{self.deep}:TwoSteps", **settings)


def tokens(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 96, (count,), generator=generator).tolist()


PROMPTS = [tokens(length, seed) for seed, length in enumerate(LENGTHS)]
ALIKE = [tokens(SHARED, 50) + tokens(count, 60 + count) for count in (5, 1, 9, 2)]


@pytest.fixture(scope="module", params=nightly_unless(lambda name: name in USUAL, FAMILIES))
def family(request, tmp_path_factory):
    made = Family(request.param, tmp_path_factory.mktemp("models"))
    with made.in_chunks, made.in_flight:
        yield made


@pytest.fixture(scope="module")
def pool():
    """Two processes for all families; they import no family's code again."""
    for small, seed in FAMILIES.values():
        models.build(small, seed=seed)
    made = rank_pool.PooledExecutor.pool = rank_pool.Pool(2)
    yield made
    assert made.close() == 0


def cleared(llm):
    """An engine that others have used, as it was at first."""
    assert llm.reset_prefix_cache()
    return llm


def serve(llm, prompts, *, n=1):
    """Outputs of one batch; `ids_of` are their tokens."""
    return llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        SamplingParams(
            temperature=0.0, max_tokens=OUTPUT_LENGTH, ignore_eos=True, detokenize=False, n=n
        ),
        use_tqdm=False,
    )


def ids_of(outputs):
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.nightly_after(1)
def test_prompts_in_chunks(family):
    assert ids_of(serve(cleared(family.in_chunks), PROMPTS)) == family.answers


@pytest.mark.nightly_after(1)
def test_a_shared_beginning_is_computed_once(family):
    with family.engine(scheduler=SNAPSHOTS) as llm:
        first = serve(llm, ALIKE[:1])
        others = serve(llm, ALIKE[1:])
        again = serve(llm, ALIKE)
    assert ids_of(first + others) == ids_of(again) == family.answers_to_shared
    assert first[0].num_cached_tokens == 0
    assert [output.num_cached_tokens for output in others] == [SHARED] * 3
    assert min(output.num_cached_tokens for output in again) >= SHARED


@pytest.mark.nightly
def test_preempted_requests_come_back(family):
    with family.engine(**family.few_blocks) as llm:
        outputs = serve(llm, PROMPTS)
    assert ids_of(outputs) == family.answers
    assert sum(output.metrics.num_preemptions for output in outputs) > 0


@pytest.mark.parametrize(
    "two_steps",
    nightly_unless(lambda two_steps: two_steps, [False, True]),
    ids=["one step", "two steps in flight"],
)
def test_aborted_requests_leave_nothing_behind(family, two_steps):
    """One that decodes, one amid its prompt and one that waits; others take their rows, and the same come again."""
    llm = cleared(family.in_flight if two_steps else family.in_chunks)
    core = llm.engine_core
    inbox = Inbox()
    for number, prompt in enumerate(PROMPTS):
        core.add_request(request(number + 1, prompt, max_tokens=OUTPUT_LENGTH, ignore_eos=True))
    while len(inbox.tokens.get(1, [])) < 2:
        inbox.take(core.step()[0])
    core.abort_requests([1, 4, 6])
    inbox.run(core)
    assert sorted(inbox.finished) == [2, 3, 5]
    for handle in (2, 3, 5):
        assert inbox.tokens[handle] == family.answers[handle - 1]
    assert core.request_counts() == (0, 0)
    assert ids_of(serve(llm, PROMPTS)) == family.answers


def test_two_completions_of_a_prompt(family):
    outputs = serve(cleared(family.in_chunks), PROMPTS, n=2)
    found = [[list(each.token_ids) for each in output.outputs] for output in outputs]
    assert found == [[answer, answer] for answer in family.answers]


@pytest.mark.nightly
def test_two_steps_in_flight(family):
    assert family.in_flight.engine_core.depth == 2
    assert ids_of(serve(cleared(family.in_flight), PROMPTS)) == family.answers


@pytest.mark.nightly_after(1)
def test_preempted_with_two_steps_in_flight(family):
    with family.two_steps(**family.few_blocks) as llm:
        outputs = serve(llm, PROMPTS)
        assert ids_of(outputs) == family.answers
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
        assert ids_of(serve(llm, ALIKE)) == family.answers_to_shared


@pytest.mark.nightly_after(1)
def test_layers_cut_over_two_ranks(family, pool):
    settings = {
        "executor": f"{rank_pool.__name__}:PooledExecutor",
        "tensor_parallel_size": 2,
        "max_num_batched_tokens": 24,
    }
    if family.name in NO_PLAN:
        remedy = "no tensor parallel plan.*use tensor_parallel_size=1"
        with pytest.raises(TenonryError, match=rf"{type(family.module).__name__}.*{remedy}"):
            family.engine(**settings)
        return
    with family.engine(**settings) as llm:
        assert ids_of(serve(llm, PROMPTS)) == family.answers
        assert ids_of(serve(llm, ALIKE)) == family.answers_to_shared
