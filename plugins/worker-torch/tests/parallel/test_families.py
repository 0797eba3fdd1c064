"""Ranks together compute the results of one process: greedy tokens equal `generate` for every family with plans."""

from __future__ import annotations

import functools

import pytest
import torch
import worker_families
import worker_tools
from parallel_tools import Ranks
from worker_driver import Driver, Request

from tenonry.errors import ModelError
from tenonry.sampling_params import SamplingParams
from tenonry.step import RowFailure
from tenonry_testkit.tiers import nightly_unless

pytestmark = pytest.mark.slow  # whole models

NO_PLAN = {"gpt2", "opt", "stablelm", "diffllama", "whisper"}
# Of a rank of two. MiMo has other ones in layers with a window; the keys of an indexer are whole.
KV_HEADS = {"gpt_neox": {2}, "mimo_v2_flash": {1, 2}, "deepseek_v3": {4}, "deepseek_v32": {1, 2}}
NO_CUTS = {"gpt_oss"}  # the stack can be shared out, and layers cannot be cut
NO_STAGES = {
    "phimoe",
    "llama4",
    "gemma4",
    "glm_moe_dsa",
    "beam",
}  # layers can be cut, and the stack cannot
# Checkpoint tensors that are rearranged; activations that are picked from a whole layer.
REFUSED = {"hrm_text", "gemma3n"}
PLANNED = [
    family
    for family in worker_families.FAMILIES
    if family not in NO_PLAN | NO_CUTS | NO_STAGES | REFUSED
]
LAYOUTS = {"TP 2": (2, 1), "PP 2": (1, 2), "TP 2 x PP 2": (2, 2)}
# They have no fused layers, or not when sharded.
OWN_CODE = {
    "deepseek_v32",
    "beam",
    "granite_swa",
    "deepseek_v3",
    "mimo_v2_flash",
    "gpt_neox",
    "granite",
    "starcoder2",
    "cohere",
    "olmo2",
    "phi3",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")

    @functools.cache
    def folder(family):
        worker_families.save(family, root / family)
        return root / family

    return folder


def serve(ranks, requests, **way):
    Driver(ranks.answer, max_num_seqs=6, num_blocks=96, block_size=4, **way).run(requests)
    return [one.output for one in requests]


def kv_heads(ranks):
    return {layer.spec.num_kv_heads for model in ranks.models for layer in model.layers.values()}


def greedy():
    prompts = enumerate(worker_tools.prompts())
    return [Request(i + 1, prompt, max_tokens=worker_tools.OUTPUT_LENGTH) for i, prompt in prompts]


def sampled(**more):
    return [
        Request(
            number + 1, prompt, max_tokens=8,
            sampling=SamplingParams(
                max_tokens=8, ignore_eos=True, temperature=0.8, top_p=0.9, seed=number, frequency_penalty=0.3, **more
            ),
        )
        for number, prompt in enumerate(worker_tools.prompts())
    ]  # fmt: skip


@pytest.mark.parametrize(
    "family", nightly_unless(lambda family: family in worker_families.USUAL, PLANNED)
)
@pytest.mark.slow
@pytest.mark.nightly_after(3)
def test_tokens_equal_generate(folders, family):
    """In a pipeline of two stages whose layers are cut in two; prompts come in chunks."""
    ranks = Ranks(folders(family), 2, 2)
    assert serve(ranks, greedy(), budget=17) == worker_tools.generated(family)
    is_fused = {type(model.forward).__name__ == "FusedForward" for model in ranks.models}
    assert is_fused == {family not in OWN_CODE}
    assert kv_heads(ranks) == KV_HEADS.get(family, {1})
    ranks.close()


@pytest.mark.parametrize(
    "family", nightly_unless(lambda family: family in {"llama4", "gemma4"}, sorted(NO_STAGES))
)
@pytest.mark.slow
@pytest.mark.nightly_after(1)
def test_tokens_equal_generate_where_only_layers_are_cut(folders, family):
    if not worker_families.has_tensor_plan(family):
        pytest.skip(f"the installed transformers has no tensor parallel plan of {family}")
    ranks = Ranks(folders(family), 2)
    assert serve(ranks, greedy(), budget=17) == worker_tools.generated(family)
    ranks.close()


@pytest.mark.parametrize("family", sorted(NO_CUTS))
def test_tokens_equal_generate_where_only_the_stack_is_shared_out(folders, family):
    ranks = Ranks(folders(family), 1, 2)
    assert serve(ranks, greedy(), budget=17) == worker_tools.generated(family)
    ranks.close()


@pytest.mark.parametrize("layout", ["TP 2", "PP 2"])
def test_tokens_equal_generate_with_one_kind_of_ranks(folders, layout):
    ranks = Ranks(folders("llama-biased"), *LAYOUTS[layout])
    assert serve(ranks, greedy()) == worker_tools.generated("llama-biased")
    ranks.close()


@pytest.mark.parametrize("family", ["llama", "mixtral", "phi3"])
@pytest.mark.slow
@pytest.mark.nightly_after(1)
def test_fewer_kv_heads_than_ranks_are_shared(folders, family):
    ranks = Ranks(folders(family), 4)
    assert serve(ranks, greedy()) == worker_tools.generated(family)
    assert kv_heads(ranks) == {1}
    ranks.close()


@pytest.mark.parametrize("family", ["llama-biased", "mixtral"])
def test_the_models_own_code_runs_on_pieces_too(folders, family):
    ranks = Ranks(folders(family), 2, 2, fuse=False, backend="sdpa")
    assert {type(model.forward).__name__ for model in ranks.models} == {"ModuleForward"}
    assert serve(ranks, greedy()) == worker_tools.generated(family)
    ranks.close()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.slow
def test_random_tokens_and_logprobs_are_those_of_one_process(folders, layout):
    one, several = Ranks(folders("qwen3")), Ranks(folders("qwen3"), *LAYOUTS[layout])
    wanted, got = sampled(logprobs=2, prompt_logprobs=1), sampled(logprobs=2, prompt_logprobs=1)
    assert serve(one, wanted) == serve(several, got, budget=9)
    for first, second in zip(wanted, got, strict=True):
        assert [ids.tolist() for ids, _, _ in first.logprobs] == [
            ids.tolist() for ids, _, _ in second.logprobs
        ]
        counts = [
            sum(len(part.rank) for part in request.prompt_logprobs) for request in (first, second)
        ]
        assert counts == [len(first.prompt) - 1] * 2
    one.close()
    several.close()


@pytest.mark.parametrize(
    "way", [{"depth": 3, "budget": 20}, {"budget": 11, "depth": 2, "preempt_every": 5}]
)
def test_ranks_feed_back_their_own_tokens_with_several_steps_in_flight(folders, way):
    ranks = Ranks(folders("llama"), 2)
    assert serve(ranks, greedy(), **way) == worker_tools.generated("llama")
    assert (ranks.runners[0].state.token_ids == ranks.runners[1].state.token_ids).all()
    ranks.close()


@pytest.mark.parametrize("family", ["llama-biased", "mixtral"])
@pytest.mark.slow
def test_random_weights_do_not_depend_on_the_layout(folders, family):
    one, several = (
        Ranks(folders(family), *shape, load_format="dummy") for shape in ((1, 1), (2, 2))
    )
    assert serve(one, greedy()) == serve(several, greedy())
    one.close()
    several.close()


def test_pieces_in_bfloat16_give_logits_close_to_the_whole(folders):
    """Partial sums are rounded before they are added, so tokens may differ."""
    seen = {}
    for size in (1, 2):
        ranks = Ranks(folders("qwen3"), size, dtype="bfloat16")
        for rank, runner in enumerate(ranks.runners):
            forward = runner.forward_pass.forward
            runner.forward_pass.forward = Recorder(forward, seen.setdefault((size, rank), []))
        serve(ranks, [Request(1, worker_tools.prompts()[3], max_tokens=1)])
        ranks.close()
    (whole,), (first,), (second,) = (seen[key] for key in ((1, 0), (2, 0), (2, 1)))
    assert torch.equal(first, second)
    assert float((whole - first).norm() / whole.norm()) < 0.05


class Recorder:
    def __init__(self, forward, seen):
        self.forward, self.seen, self.can_prune = forward, seen, forward.can_prune

    def __call__(self, *arguments):
        logits = self.forward(*arguments)
        self.seen.append(logits.float())
        return logits


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.slow
def test_a_request_that_makes_nan_leaves_nothing_behind_on_any_rank(folders, layout):
    tp, pp = LAYOUTS[layout]
    ranks = Ranks(folders("llama"), tp, pp, num_blocks=60)
    used = {
        token
        for tokens in worker_tools.prompts() + worker_tools.generated("llama")
        for token in tokens
    }
    poison = next(token for token in range(95, 2, -1) if token not in used)
    for model in ranks.models:
        if model.parallel.link.is_first:
            model.module.get_input_embeddings().weight.data[poison] = float("nan")
    driver = Driver(ranks.answer, max_num_seqs=6, num_blocks=60, block_size=4)
    bad = Request(99, [7, poison, 9], max_tokens=4)
    requests = [bad, *greedy()]
    driver.run(requests)
    assert bad.failure == RowFailure.NUMERICAL
    assert [one.output for one in requests[1:]] == worker_tools.generated("llama")
    for _ in range(3):  # the pool is small: its blocks are used again
        assert [one.output for one in driver.run(greedy())] == worker_tools.generated("llama")
    ranks.close()


def test_a_dummy_batch_changes_nothing_for_those_who_run(folders):
    for shape in ((1, 1), (2, 2)):
        ranks = Ranks(folders("llama"), *shape)

        def answer(output, ranks=ranks):
            ranks.all(lambda rank: ranks.runners[rank].forward_pass.dummy())
            return ranks.answer(output)

        requests = greedy()
        Driver(answer, max_num_seqs=6, num_blocks=96, block_size=4).run(requests)
        assert [one.output for one in requests] == worker_tools.generated("llama")
        ranks.close()


def test_what_a_plan_left_out_is_refused_by_name(folders, monkeypatch):
    """Cohere's norm per head has a weight for every head, which its plan keeps whole."""
    name, values = worker_families.FAMILIES["cohere"]
    monkeypatch.setitem(
        worker_families.FAMILIES, "cohere-normed", (name, values | {"use_qk_norm": True})
    )
    monkeypatch.setitem(worker_families.SEEDS, "cohere-normed", 0)
    with pytest.raises(
        ModelError, match=r"CohereForCausalLM cannot run cut into 2 ranks .* tensor_parallel_size=1"
    ):
        Ranks(folders("cohere-normed"), 2)


def test_activations_that_are_picked_from_a_whole_layer_are_not_picked_from_pieces(folders):
    with pytest.raises(
        ModelError,
        match=r"Gemma3n.* picks the largest activations of a layer.*tensor_parallel_size=1",
    ):
        Ranks(folders("gemma3n"), 2)


@pytest.mark.parametrize("family", sorted(NO_PLAN))
def test_a_family_without_a_plan_is_refused_with_the_remedy(folders, family):
    for shape, text in (((2, 1), "no tensor parallel plan.*use tensor_parallel_size=1"),
                        ((1, 2), "no pipeline parallel plan.*use pipeline_parallel_size=1")):  # fmt: skip
        with pytest.raises(ModelError, match=rf"family '{family}'\) has {text}"):
            Ranks(folders(family), *shape)
