"""Sequences many times as long as a window hold a bounded number of blocks, and their tokens are those of `generate`.

A pool that holds no whole history serves them: alone, with others, behind a shared prefix and after a preemption.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import pytest
import torch

from tenonry import LLM, SamplingParams
from tenonry.errors import ConfigError
from tenonry.kv_cache import sequence_pages

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
SETTINGS = {
    "worker": "torch", "executor": "uni", "scheduler": "batching", "dtype": "float32", "device": "cpu",
    "max_num_seqs": 4, "max_num_batched_tokens": 16, "block_size": 4, "skip_tokenizer_init": True, "log_stats": False,
}  # fmt: skip
WINDOW = 3
LONG = 40 * WINDOW
# Family, KV groups with blocks as (kind, window, layers), attention backend.
CASES = {
    "windows alone": ("mistral", [("sliding", 3, 3)], "cpu"),
    "every other layer": ("gemma2", [("full", 0, 1), ("sliding", 3, 1), ("sliding", 3, 1)], "cpu"),
    "one in three": ("gemma3", [("full", 0, 1), ("sliding", 3, 1), ("sliding", 3, 1)], "sdpa"),
    "sinks": ("gpt_oss", None, "cpu"),
}


def load_families():
    path = ROOT / "plugins" / "worker-torch" / "tests" / "worker_families.py"
    spec = importlib.util.spec_from_file_location("worker_families_of_windows", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


families = load_families()


class Case:
    """One small model with room for long sequences."""

    def __init__(self, family, folder):
        name, values = families.FAMILIES[family]
        families.FAMILIES["long"] = (name, values | {"sliding_window": WINDOW})
        self.module = families.build("long", seed=families.SEEDS[family])
        self.module.save_pretrained(folder)
        self.folder = folder
        self.answers = {}

    def answer(self, prompt, count):
        """Answer of `generate` to a prompt."""
        if (prompt, count) not in self.answers:
            self.answers[prompt, count] = self.generate(prompt, count)
        return self.answers[prompt, count]

    def generate(self, prompt, count):
        ids = torch.tensor([prompt])
        whole = self.module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return whole[0, len(prompt) :].tolist()

    def engine(self, **settings):
        return LLM(model=str(self.folder), **(SETTINGS | {"max_model_len": 128} | settings))


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    @functools.cache
    def case(name):
        family = CASES[name][0]
        return Case(family, tmp_path_factory.mktemp(family))

    return case


def tokens(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, 96, (count,), generator=generator).tolist())


def serve(llm, prompts, count, **params):
    sampling = SamplingParams(
        temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False, **params
    )
    given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    return llm.generate(given, sampling, use_tqdm=False)


def ids_of(outputs):
    return [list(output.outputs[0].token_ids) for output in outputs]


def watch(llm):
    """The most blocks that were in use after any step."""
    most = [0]
    blocks = llm.engine_core.scheduler.blocks
    schedule = llm.engine_core.scheduler.schedule

    def watched():
        output = schedule()
        most[0] = max(most[0], blocks.num_total - blocks.num_free)
        return output

    llm.engine_core.scheduler.schedule = watched
    return most


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("name", CASES)
def test_a_long_answer_holds_what_windows_reach(cases, name):
    """Sequences of LONG tokens, with no more blocks than their full layers and windows need."""
    case = cases(name)
    _, expected, backend = CASES[name]
    prompts = [tokens(5, 1), tokens(26, 2)]
    with case.engine(attention_backend=backend, num_gpu_blocks_override=200) as llm:
        groups = llm.engine_core.kv_cache.groups
        found = [(group.kind, group.window, len(group.layers)) for group in groups]
        assert expected is None or found == expected
        assert any(group.window for group in groups)
        most = watch(llm)
        outputs = serve(llm, prompts, LONG - 26)
        assert ids_of(outputs) == [case.answer(prompt, LONG - 26) for prompt in prompts]
        bound = sum(sequence_pages(groups, LONG, 4, 16) for _ in prompts)
        history = len(groups) * -(-LONG // 4)
        assert most[0] <= bound < len(prompts) * history


def test_windows_alone_need_a_handful_of_blocks(cases):
    """Three tokens are seen: six blocks of four hold them and a chunk of 16, however long the sequence gets."""
    case = cases("windows alone")
    with case.engine(num_gpu_blocks_override=6) as llm:
        assert llm.engine_core.kv_cache.max_model_len == 128
        prompt = tokens(77, 3)
        assert ids_of(serve(llm, [prompt], 40)) == [case.answer(prompt, 40)]


@pytest.mark.parametrize(
    "name", ["windows alone", pytest.param("every other layer", marks=pytest.mark.nightly)]
)
def test_preempted_and_shared(cases, name):
    """Six prompts with a common beginning in a pool of hardly more than one sequence, twice, with two answers each."""
    case = cases(name)
    prompts = [tokens(24, 4) + tokens(count, 5 + count) for count in (3, 9, 1, 14, 6, 2)]
    expected = [case.answer(prompt, 40) for prompt in prompts]
    with case.engine(max_model_len=80) as llm:
        groups = llm.engine_core.kv_cache.groups
    blocks = sequence_pages(groups, 80, 4, 16)
    with case.engine(max_model_len=80, num_gpu_blocks_override=blocks) as llm:
        preemptions = 0
        for _ in range(2):
            outputs = serve(llm, prompts, 40, n=2)
            assert ids_of(outputs) == expected
            assert [list(output.outputs[1].token_ids) for output in outputs] == expected
            preemptions += sum(output.metrics.num_preemptions for output in outputs)
        # With windows alone, those that have started hold no more blocks later on.
        assert preemptions > 0 or name == "windows alone"
    with case.engine(max_model_len=80, num_gpu_blocks_override=200) as llm:
        assert ids_of(serve(llm, prompts[:1], 40)) == expected[:1]
        outputs = serve(llm, prompts, 40)
        assert ids_of(outputs) == expected
        assert [output.num_cached_tokens for output in outputs] == [24] * 6


def test_windows_can_be_kept_whole(cases):
    """One group with full attention's blocks, which a KV connector can move."""
    case = cases("every other layer")
    prompt = tokens(40, 6)
    option = {"name": "torch", "options": {"sliding_window_groups": False}}
    with case.engine(worker=option) as llm:
        assert [group.kind for group in llm.engine_core.kv_cache.groups] == ["full"]
        assert ids_of(serve(llm, [prompt], 20)) == [case.answer(prompt, 20)]


def test_a_kv_connector_is_refused_with_the_option(cases):
    connector = "tenonry_testkit.fakes:MemoryConnector"
    with pytest.raises(ConfigError, match="--worker-option sliding_window_groups=false"):
        cases("every other layer").engine(kv_connector=connector)
