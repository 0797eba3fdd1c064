"""Batch invariance: every bit of a request's results is the same alone and in any batch (WK-14)."""

from __future__ import annotations

import copy
import functools
import itertools

import numpy as np
import pytest
import torch
import worker_families
import worker_tools
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worker_driver import Driver, Request

from tenonry.errors import ConfigError, ModelError
from tenonry.sampling_params import SamplingParams
from tenonry_kernels_cpu.invariant import Invariant
from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_testkit.tiers import nightly_unless
from tenonry_torch_base.step_kernels import StepKernels
from tenonry_worker_torch.fuse.block import is_silu
from tenonry_worker_torch.invariant_settings import require_kernels
from tenonry_worker_torch.residency.plain import plain_weights
from tenonry_worker_torch.step_kernels import FoundKernels
from tenonry_worker_torch_cpu.invariance.layers import InvariantLayer

pytestmark = [
    pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built"),
    pytest.mark.slow,  # whole models
]
FAMILIES = ("llama", "llama-biased", "qwen2", "qwen3", "mistral", "phi3")
HALF = " in bfloat16"
IN_BFLOAT16 = tuple(name + HALF for name in ("llama-biased", "qwen3", "mistral"))
VOCAB = 96
MAX_TOKENS = 6
NUM_LOGPROBS = 64
EXAMPLES = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 40),  # tokens of its prompt
        st.integers(0, 3),  # seeds of prompts: some are equal
        st.sampled_from([None, 7, 11]),  # seed of its draws; None: greedy
        st.integers(0, MAX_TOKENS - 1),  # output tokens that it brings along
    ),
    min_size=1,
    max_size=6,
)
WAYS = st.tuples(
    st.sampled_from([1, 5, 17, 1000]),  # tokens of a step
    st.integers(0, 1000),  # order of rows and blocks
    st.sampled_from([0, 0, 3]),  # steps from one preemption to the next
)


def invariant_model(family, kernels=None, **options):
    module = worker_families.build(family.removesuffix(HALF))
    if family.endswith(HALF):
        module.bfloat16()
    return worker_tools.loaded(
        module,
        backend="invariant",
        kernels=FoundKernels(kernels or CpuKernels(), True),
        invariant=True,
        **options,
    )


@functools.cache
def model_of(family):
    return invariant_model(family)


def asked(length, prompt_seed, draw_seed, num_output=0, output=()):
    sampling = SamplingParams(
        temperature=0.0 if draw_seed is None else 1.0,
        seed=draw_seed,
        max_tokens=MAX_TOKENS,
        ignore_eos=True,
        logprobs=NUM_LOGPROBS,
    )
    (prompt,) = worker_tools.prompts((length,), seed=prompt_seed)
    request = Request(1, prompt, sampling, max_tokens=MAX_TOKENS)
    request.output = list(output[:num_output])
    return request


def served(model, requests, budget=1000, seed=0, preempt_every=0):
    runner = worker_tools.runner(model)
    for handle, request in enumerate(requests, 1):
        request.handle = handle
    driver = Driver(
        runner.answer,
        max_num_seqs=6,
        num_blocks=96,
        block_size=4,
        budget=budget,
        seed=seed,
        preempt_every=preempt_every,
    )
    return driver.run(requests)


def bits_of(request):
    """The log-probabilities of the most likely tokens at each position, in order of the tokens."""
    found = []
    for ids, logprobs, _ in request.logprobs:
        by_token = np.zeros(VOCAB, np.float32)
        by_token[ids] = logprobs
        found.append(by_token.tobytes())
    return found


@functools.cache
def alone(family, *given_request):
    request = asked(*given_request)
    served(model_of(family), [request])
    return request.output, bits_of(request)


@pytest.mark.parametrize(
    ("family", "threads"),
    nightly_unless(
        lambda family, threads: threads == 2 or family == FAMILIES[0],
        itertools.product(FAMILIES + IN_BFLOAT16, [1, 2]),
    ),
)
@pytest.mark.nightly_after(4)
def test_bits_of_a_request_are_those_that_it_gets_alone(family, threads, monkeypatch):
    model = model_of(family)
    for layer in model.forward.layers:
        monkeypatch.setattr(layer.kernel, "_threads", threads)

    @EXAMPLES
    @given(REQUESTS, WAYS)
    def check(given_requests, way):
        wanted = [alone(family, *one[:3]) for one in given_requests]
        requests = [
            asked(*one, output=tokens)
            for one, (tokens, _) in zip(given_requests, wanted, strict=True)
        ]
        served(model, requests, *way)
        for request, (tokens, bits), one in zip(requests, wanted, given_requests, strict=True):
            assert request.output == tokens
            assert bits_of(request) == bits[one[3] :]

    check()


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_equal_generate(family):
    requests = [
        Request(handle, prompt, max_tokens=worker_tools.OUTPUT_LENGTH)
        for handle, prompt in enumerate(worker_tools.prompts(), 1)
    ]
    served(model_of(family), requests, budget=20)
    assert [request.output for request in requests] == worker_tools.generated(family)


@pytest.mark.parametrize("family", IN_BFLOAT16)
def test_in_bfloat16_little_is_rounded(family):
    """Weights, K and V are in bfloat16, and all else is not, as it is in the model's own code."""
    half = worker_families.build(family.removesuffix(HALF)).bfloat16()
    exact = copy.deepcopy(half).float()
    errors = []
    for prompt in worker_tools.prompts():
        request = asked(1, 0, None)
        request.prompt = prompt
        served(model_of(family), [request])
        ids = torch.tensor([[*prompt, *request.output[:-1]]])
        with torch.inference_mode():
            wanted, usual = (
                model(ids).logits[0, len(prompt) - 1 :].float().log_softmax(-1)
                for model in (exact, half)
            )
        for position, (tokens, logprobs, _) in enumerate(request.logprobs):
            right = wanted[position][tokens]
            ours = torch.from_numpy(np.asarray(logprobs, np.float32))
            errors.append([(each - right).abs().max() for each in (ours, usual[position][tokens])])
    ours, usual = torch.tensor(errors).mean(0)
    assert ours < 0.7 * usual


def test_prompt_log_probabilities_are_those_of_a_prompt_in_one_piece():
    def of_prompt(budget, beside):
        (prompt,) = worker_tools.prompts((30,))
        sampling = SamplingParams(max_tokens=1, prompt_logprobs=3, temperature=0.0)
        first = Request(1, prompt, sampling, max_tokens=1)
        others = [asked(length, 0, None) for length in beside]
        served(model_of("qwen3"), [first, *others], budget)
        parts = [(part.start, part.logprobs) for part in first.prompt_logprobs]
        return np.concatenate([logprobs for _, logprobs in sorted(parts, key=lambda part: part[0])])

    wanted = of_prompt(1000, ())
    assert wanted.tobytes() == of_prompt(7, (5, 9)).tobytes()
    assert wanted.tobytes() == of_prompt(1, ()).tobytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_has_a_kernel_and_the_log_says_so(family):
    model = model_of(family)
    assert all(isinstance(layer, InvariantLayer) for layer in model.forward.layers)
    assert model.chosen_kernels.startswith(
        f"Step kernels 'cpu' ({CpuKernels().description}): 3 × layer"
    )


@pytest.mark.parametrize("family", ["llama-biased", "qwen3", "llama-biased" + HALF])
def test_weights_are_held_once_and_can_be_read_again(family):
    model = invariant_model(family)
    wanted = worker_families.build(family.removesuffix(HALF)).to(model.dtype).state_dict()
    layer = model.module.model.layers[0]
    assert layer.self_attn.q_proj.weight.numel() == layer.mlp.down_proj.weight.numel() == 0
    found = plain_weights(model)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_model_is_served_up_to_few_positions():
    model = invariant_model("qwen3", max_model_len=7)
    request = asked(1, 0, None)
    served(model, [request])
    assert request.output == alone("qwen3", 1, 0, None)[0]


class TestRefusals:
    @pytest.mark.parametrize(
        ("family", "reason"),
        [
            ("gemma2", "attends to other keys than the last ones, or bounds its scores"),
            ("gemma", "has another activation than SiLU"),
            ("olmo2", "Olmo2ForCausalLM runs its own code"),
            ("mixtral", "as its feed-forward part"),
            ("gpt2", "GPT2LMHeadModel runs its own code"),
        ],
    )
    def test_other_layers_are_refused_by_name(self, family, reason):
        with pytest.raises(ModelError, match=rf"batch_invariant: .*{reason}.*leave --batch-inv"):
            invariant_model(family)

    def test_kernels_that_offer_nothing_of_the_kind(self):
        class Bare(StepKernels):
            name = "bare"

            @classmethod
            def refusal(cls):
                return None

        with pytest.raises(ConfigError, match="step_kernels=bare: they have none that keep it"):
            require_kernels(FoundKernels(Bare(), True))

    @pytest.mark.parametrize("skip_check", [False, True])
    @pytest.mark.parametrize("what", ["a layer", "the head"])
    def test_kernels_that_look_at_the_number_of_rows(self, what, skip_check):
        class Counting(CpuKernels):
            """Rounds differently with several rows, by the smallest difference."""

            def invariant(self):
                return Nudging(self.instruction_set, self.threads)

        class Nudging(Invariant):
            def layer(self, parts):
                kernel = super().layer(parts)
                return kernel if what == "the head" else lambda x, *given: nudged(kernel(x, *given))

            def linear(self, weight, bias):
                kernel = super().linear(weight, bias)
                is_nudged = what == "the head" and weight.shape[0] == VOCAB
                return Head(kernel) if is_nudged else kernel

        with pytest.raises(ModelError, match=f"{what} of Qwen3ForCausalLM makes other bits"):
            invariant_model("qwen3", Counting(), skip_check=skip_check)


def nudged(made):
    """The next larger numbers, if there are several rows."""
    larger = torch.nextafter(made, torch.full_like(made, torch.inf))
    return larger if len(made) > 1 else made


class Head:
    def __init__(self, kernel):
        self.kernel = kernel

    def __call__(self, x, other=None):
        return nudged(self.kernel(x, other))

    def weight(self):
        return self.kernel.weight()


def test_activations_are_known_by_what_they_compute():
    assert is_silu(torch.nn.SiLU())
    assert is_silu(lambda x: x * torch.sigmoid(x))
    assert not is_silu(torch.nn.GELU())
    assert not is_silu(torch.nn.ReLU())
