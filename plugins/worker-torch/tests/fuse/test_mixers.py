"""Paths of our own for layers with state: which layers get one, that it computes the same, and when it is dropped."""

from __future__ import annotations

import functools
import logging

import pytest
import state_families
import torch
import worker_families
import worker_tools
from worker_driver import Driver, Request

from tenonry_torch_base.cache_argument import cache_argument
from tenonry_torch_base.text_part import text_stack
from tenonry_worker_torch.changes import Changes
from tenonry_worker_torch.fuse.block import FusedAttention
from tenonry_worker_torch.fuse.mixers import drop_path, use_paths
from tenonry_worker_torch.fuse.mixers.build import path_of
from tenonry_worker_torch.fuse.mixers.delta_rule import DeltaRule
from tenonry_worker_torch.fuse.mixers.part import FusedMixer
from tenonry_worker_torch.fuse.mixers.selective_scan import GatedNorm, SelectiveScan
from tenonry_worker_torch.fuse.mixers.short_convolution import ShortConvolution
from tenonry_worker_torch.fuse.verify import layers_agree
from tenonry_worker_torch.kv_groups import GroupLayout

pytestmark = pytest.mark.slow  # whole models

PATHS = {
    "qwen3_next": DeltaRule,
    "qwen3_5_text": DeltaRule,
    "mamba2": SelectiveScan,
    "falcon_h1": SelectiveScan,
    "granitemoehybrid": SelectiveScan,
    "nemotron_h": SelectiveScan,
    "zamba2": SelectiveScan,
    "lfm2": ShortConvolution,
}
ONE_OF_EACH = ("qwen3_next", "qwen3_5_text", "mamba2", "falcon_h1", "lfm2")


def loaded(family, dtype=torch.float32, **options):
    return worker_tools.loaded(worker_families.build(family, dtype=dtype), **options)


@pytest.mark.parametrize("family", sorted(PATHS))
@pytest.mark.nightly_after(4)
def test_layers_of_a_known_mechanism_get_a_path(family):
    model = loaded(family)
    assert {type(mixer.path) for mixer in model.states.mixers} == {PATHS[family]}


@pytest.mark.parametrize("family", sorted(set(state_families.FAMILIES) - set(PATHS)))
def test_layers_of_other_mechanisms_run_their_own_code(family):
    assert all(mixer.path is None for mixer in loaded(family).states.mixers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ONE_OF_EACH)
def test_a_path_continues_where_the_module_stopped(family, dtype):
    """Each row has a prompt of its own; after it, outputs and states are the module's, token after token."""
    mixer = loaded(family, dtype, fuse=False, skip_check=True).states.mixers[0]
    path = path_of(mixer.module)
    cache = mixer.state.empty()
    torch.manual_seed(1)
    with torch.no_grad():
        prompt = torch.randn(5, 9, mixer.hidden_size).to(dtype)
        mixer.argument.call(mixer.forward, (prompt,), {}, cache)
        held = {key: state.clone() for key, state in mixer.state.taken_from(cache)}
        for _ in range(4):
            token = torch.randn(5, mixer.hidden_size).to(dtype)
            wanted = mixer.argument.call(mixer.forward, (token[:, None],), {}, cache)
            assert relative(path(token, held), wanted[:, 0]) < tolerance(dtype)
            for key, state in mixer.state.taken_from(cache):
                assert held[key].dtype == state.dtype
                assert relative(held[key], state) < tolerance(dtype)


def relative(got, wanted):
    assert got.shape == wanted.shape
    return float((got.float() - wanted.float()).norm() / wanted.float().norm())


def tolerance(dtype):
    return 1e-5 if dtype == torch.float32 else 2e-2  # the module rounds in between


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_text"])
def test_prompts_of_a_delta_rule_are_the_modules(family, dtype):
    """New ones and further pieces, of one token, less than a chunk, and more than one."""
    mixer = loaded(family, dtype, fuse=False, skip_check=True).states.mixers[0]
    path = path_of(mixer.module)
    torch.manual_seed(3)
    with torch.no_grad():
        for first in (1, 3, 20, 70, 130):
            cache = mixer.state.empty()
            states = None
            for length in (first, 2, 33):
                prompt = torch.randn(3, length, mixer.hidden_size).to(dtype)
                wanted = mixer.argument.call(mixer.forward, (prompt,), {}, cache)
                got, states = path.over_prompts(prompt, states)
                assert relative(got, wanted) < tolerance(dtype)
                for key, state in mixer.state.taken_from(cache):
                    assert relative(states[key], state) < tolerance(dtype)


def test_the_chunk_rule_is_given_a_key_for_each_value_head(monkeypatch):
    """That of transformers 5.17 does not repeat the heads itself."""
    path = loaded("qwen3_next").states.mixers[0].path
    assert path.num_key_heads < path.num_heads
    rule = path.chunk_rule
    seen = []

    def counted(query, key, value, **named):
        seen.append({query.shape[2], key.shape[2], value.shape[2]})
        return rule(query, key, value, **named)

    monkeypatch.setattr(path, "chunk_rule", counted)
    with torch.no_grad():
        path.over_prompts(torch.randn(2, 5, 64), None)
    assert seen == [{path.num_heads}]


class WholeNorm(torch.nn.Module):
    """A gated norm over all of its input, as that of Mamba 2 in transformers 5.17."""

    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(size))
        self.variance_epsilon = 1e-6

    def forward(self, x, gate):
        x = x * torch.nn.functional.silu(gate)
        return self.weight * torch.rms_norm(x, x.shape[-1:], None, self.variance_epsilon)


def test_a_gated_norm_that_names_no_groups_has_one():
    norm = WholeNorm(12)
    x = torch.randn(3, 12) * torch.linspace(0.1, 2.0, 12)
    gate = torch.randn(3, 12)
    torch.testing.assert_close(GatedNorm(norm)(x, gate), norm(x, gate))
    norm.group_size = 4
    assert not torch.allclose(GatedNorm(norm)(x, gate), norm(x, gate))


def test_prompts_take_the_path_where_there_is_one():
    assert all(mixer.prompt_path is not None for mixer in loaded("qwen3_next").states.mixers)
    assert all(mixer.prompt_path is None for mixer in loaded("mamba2").states.mixers)
    mixers = loaded("qwen3_next").states.mixers
    for mixer in mixers:
        drop_path(mixer)
    assert all(mixer.prompt_path is None for mixer in mixers)


def test_a_wrong_prompt_path_drops_the_path(monkeypatch, caplog):
    own_code = DeltaRule.over_prompts

    def other_state(self, x, states):
        made, after = own_code(self, x, states)
        return made, {key: state * 1.01 for key, state in after.items()}

    monkeypatch.setattr(DeltaRule, "over_prompts", other_state)
    with caplog.at_level(logging.INFO, "tenonry.worker"):
        mixers = loaded("qwen3_next").states.mixers
    assert all(mixer.path is mixer.prompt_path is None for mixer in mixers)
    assert "fused mixer differs from the reference" in caplog.text


def test_a_path_that_fails_leaves_the_layer_its_own_code(monkeypatch, caplog):
    def fails(*_):
        raise RuntimeError("sizes do not match")

    monkeypatch.setattr(DeltaRule, "over_prompts", fails)
    with caplog.at_level(logging.WARNING, "tenonry.worker"):
        mixers = loaded("qwen3_next").states.mixers
    assert all(mixer.path is mixer.prompt_path is None for mixer in mixers)
    assert "using the original module: RuntimeError('sizes do not" in caplog.text


@pytest.mark.parametrize("family", ONE_OF_EACH)
def test_a_path_changes_the_states_of_its_rows_alone(family):
    """Rows with a gap between them, through copies of their states, as rows without, on the states themselves."""
    mixer = loaded(family).states.mixers[0]
    mixer.allocate(6, torch.device("cpu"))
    torch.manual_seed(2)
    before = {}
    for key, pool in mixer.pools.items():
        pool.normal_()
        before[key] = pool.clone()
    hidden = torch.randn(3, mixer.hidden_size)
    with torch.no_grad():
        gap = mixer._through_path(mixer.path, torch.tensor([4, 0, 3]), hidden)
        after = {key: pool.clone() for key, pool in mixer.pools.items()}
        for key, pool in mixer.pools.items():
            torch.testing.assert_close(pool[[1, 2, 5]], before[key][[1, 2, 5]], rtol=0, atol=0)
            pool[:3] = before[key][[4, 0, 3]]
        same = mixer._through_path(mixer.path, slice(0, 3), hidden)
    torch.testing.assert_close(gap, same)
    for key, pool in mixer.pools.items():
        torch.testing.assert_close(pool[:3], after[key][[4, 0, 3]])
        assert not torch.equal(pool[:3], before[key][[4, 0, 3]])


@pytest.mark.parametrize("change", ["output", "state"])
def test_a_layer_that_only_looks_like_a_known_one_runs_its_own_code(change, caplog):
    """One decodes to another output; the other to the same output, and leaves another state."""
    mixer = loaded("qwen3_next", fuse=False).states.mixers[0]
    mixer.module.__class__ = OTHERS[change](type(mixer.module))
    with caplog.at_level(logging.INFO, "tenonry.worker"):
        assert not use_paths([mixer], Changes())
    assert mixer.path is None
    assert "fused mixer differs from the reference" in caplog.text


def other_output(kind):
    class Louder(kind):
        def forward(self, *arguments, **named):
            return super().forward(*arguments, **named) * 1.01

    return Louder


def other_state(kind):
    cache = cache_argument(kind.forward)

    class Forgetful(kind):
        @functools.wraps(kind.forward)
        def forward(self, *arguments, **named):
            made = super().forward(*arguments, **named)
            if named.get(cache) is not None:
                named[cache].layers[self.layer_idx].recurrent_states[0].mul_(0.9)
            return made

    return Forgetful


OTHERS = {"output": other_output, "state": other_state}


def test_paths_of_a_model_that_fails_the_self_check_are_dropped(monkeypatch, caplog):
    """The comparison of the whole model detects an error that the one of a layer misses."""
    monkeypatch.setattr(SelectiveScan, "__call__", lambda _, x, states: x * 2)
    monkeypatch.setattr("tenonry_worker_torch.fuse.mixers.path_agrees", lambda mixer: True)
    with caplog.at_level(logging.INFO, "tenonry.worker"):
        model = loaded("mamba2")
    assert all(mixer.path is None for mixer in model.states.mixers)
    assert "model pass 'mixers' changes results and is left out" in caplog.text


def test_paths_can_be_switched_off_and_dropped():
    assert all(mixer.path is None for mixer in loaded("mamba2", fuse=False).states.mixers)
    mixers = loaded("mamba2").states.mixers
    for mixer in mixers:
        drop_path(mixer)
    assert all(mixer.path is None for mixer in mixers)


@pytest.mark.parametrize("family", ["qwen3_next", "mamba2", "lfm2"])
def test_paths_read_the_weights_that_were_prepacked(family):
    """In bfloat16 the linear layers inside are replaced, and a path that held the old ones would keep them twice."""
    model = loaded(family, torch.bfloat16)
    module = model.states.mixers[0].module
    out = module.out_proj
    found = model.states.mixers[0].path.out
    assert found is (out.packed if hasattr(out, "packed") else found)
    assert (type(found).__name__ == "PackedLinear") == hasattr(out, "packed")


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_text"])
def test_hybrid_of_llama_shape_runs_fused_layers(family):
    """Attention with a gate for its output among them, and mixers where others have attention."""
    forward = loaded(family).forward
    assert type(forward).__name__ == "FusedForward"
    assert [type(layer.attention) for layer in forward.layers] == [
        FusedMixer,
        FusedAttention,
        FusedMixer,
    ]
    assert forward.layers[1].attention.gate_order is not None


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_text"])
def test_each_kind_of_layer_of_a_hybrid_is_compared(family):
    model = loaded(family, torch.bfloat16, fuse=False)
    layers = list(model.layers.values())
    assert layers_agree(model.module, layers)
    for number in (0, 1):
        block = text_stack(model.module)[1].layers[number]
        hook = block.register_forward_hook(lambda _module, _input, output: output * 1.01)
        assert not layers_agree(model.module, layers)
        hook.remove()


def test_the_pruned_last_layer_leaves_states_to_the_whole_step():
    """The last layer of the family is a mixer: it computes all tokens, and only sampling ones continue."""
    model = loaded("qwen3_next")
    assert model.forward.can_prune
    runner = worker_tools.runner(model, groups=GroupLayout(2))
    driver = Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4, budget=13)
    requests = [
        Request(number + 1, prompt, max_tokens=worker_tools.OUTPUT_LENGTH)
        for number, prompt in enumerate(worker_tools.prompts())
    ]
    tokens = [request.output for request in driver.run(requests)]
    assert tokens == worker_tools.generated("qwen3_next")
