"""Experts that span engines yield the tokens of one engine: each engine with its own requests, or none."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import worker_families
import worker_tools
from parallel_tools import TIMEOUT_S, ThreadGroup, ThreadLink
from worker_driver import Driver, Request

from tenonry.errors import ConfigError
from tenonry.step import DoneFuture
from tenonry_torch_base.buffers import HostBuffers
from tenonry_torch_base.parallel import experts
from tenonry_torch_base.parallel.groups import ExpertGroups, Parallel, TensorGroup
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.loading.load import load_model
from tenonry_worker_torch.residency.residency import Residency
from tenonry_worker_torch.runner.assemble import assemble_runner
from tenonry_worker_torch.startup import looked

worker_families.OTHERS["olmoe"] = (
    "olmoe",
    worker_families.SMALL | {"num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32},
)
worker_families.SEEDS["olmoe"] = 0
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")

    @functools.cache
    def folder(family):
        worker_families.save(family, root / family)
        return root / family

    return folder


def shared(size):
    return threading.Barrier(size), [None] * size


class Engines:
    """Engines of `tp` ranks each, as threads. A wave of dummy steps lasts until no engine has a request."""

    def __init__(self, folder, engines, tp=1, *, fuse=True, load_format="auto"):
        self.tp = tp
        everyone, self._wave = shared(engines * tp), shared(engines)
        peers, tensors = [shared(engines) for _ in range(tp)], [shared(tp) for _ in range(engines)]
        self.places = [
            Parallel(
                ThreadGroup(place, tp, tensors[engine]) if tp > 1 else TensorGroup(),
                ThreadLink(0, 1, []),
                ExpertGroups(
                    ThreadGroup(engine * tp + place, engines * tp, everyone),
                    ThreadGroup(engine, engines, peers[place]) if engines > 1 else TensorGroup(),
                ),
            )
            for engine in range(engines)
            for place in range(tp)
        ]
        self._threads = ThreadPoolExecutor(engines * tp + engines)
        self.modules = [
            load_model(
                str(folder), load_format=load_format, dtype="float32", device=CPU, seed=0, parallel=place
            )
            for place in self.places
        ]  # fmt: skip
        models = self.all(
            lambda rank: build(
                self.modules[rank],
                BuildPlan(
                    worker_tools.BACKENDS["cpu"],
                    HostBuffers(CPU, 1),
                    max_model_len=64,
                    fuse=fuse,
                    skip_check=False,
                    parallel=self.places[rank],
                ),
            ),
            range(engines * tp),
        )
        self.runners = [
            assemble_runner(model, max_num_seqs=6, max_model_len=64, num_blocks=96, block_size=4)
            for model in models
        ]

    def all(self, work, numbers):
        futures = [self._threads.submit(work, number) for number in numbers]
        return [future.result(TIMEOUT_S) for future in futures]

    def _is_any_busy(self, engine, is_busy):
        return any(ThreadGroup(engine, len(self._wave[1]), self._wave)._exchange(is_busy))

    def _ranks(self, engine):
        return range(engine * self.tp, (engine + 1) * self.tp)

    def _serve(self, engine, requests, way):
        def answer(output):
            if len(output.row):
                self._is_any_busy(engine, True)
            ranks = self._ranks(engine)
            return DoneFuture(self.all(lambda rank: self.runners[rank].execute(output), ranks)[0])

        if requests:
            Driver(answer, max_num_seqs=6, num_blocks=96, block_size=4, **way).run(requests)
        while self._is_any_busy(engine, False):
            self.all(lambda rank: self.runners[rank].forward_pass.dummy(), self._ranks(engine))

    def serve(self, *requests, **way):
        waves = [
            threading.Thread(target=self._serve, args=(engine, of_engine, way))
            for engine, of_engine in enumerate(requests)
        ]
        for wave in waves:
            wave.start()
        for wave in waves:
            wave.join(TIMEOUT_S)
        return [[one.output for one in of_engine] for of_engine in requests]

    def close(self):
        self._threads.shutdown()


def greedy(*numbers):
    prompts = worker_tools.prompts()
    return [
        Request(number + 1, prompts[number], max_tokens=worker_tools.OUTPUT_LENGTH)
        for number in numbers
    ]


def wanted(family, *numbers):
    return [worker_tools.generated(family)[number] for number in numbers]


@pytest.mark.parametrize("family", sorted(experts.FAMILIES))
@pytest.mark.slow
@pytest.mark.nightly_after(2)
def test_tokens_equal_generate_whatever_the_other_engine_does(folders, family):
    """Chunks of a prompt in one engine, decoding in the other; then one of them has nothing to do."""
    engines = Engines(folders(family), 2)
    assert engines.serve(greedy(0, 3, 2), greedy(1, 4), budget=17) == [
        wanted(family, 0, 3, 2),
        wanted(family, 1, 4),
    ]
    assert engines.serve([], greedy(5), budget=7) == [[], wanted(family, 5)]
    engines.close()


@pytest.mark.parametrize(("engines", "tp"), [(2, 2), (1, 2), (4, 1)])
@pytest.mark.slow
def test_experts_are_divided_among_all_ranks(folders, engines, tp):
    """Two engines of two ranks, one engine of two, four of one."""
    served = Engines(folders("qwen2_moe"), engines, tp)
    count = 4 // (engines * tp)
    assert {len(m.model.layers[0].mlp.experts.down_proj) for m in served.modules} == {count}
    requests = [greedy(number, 3 - number) for number in range(engines)]
    assert served.serve(*requests) == [
        wanted("qwen2_moe", number, 3 - number) for number in range(engines)
    ]
    served.close()


def test_the_models_own_code_runs_without_fusing(folders):
    engines = Engines(folders("mixtral"), 2, fuse=False)
    assert engines.serve(greedy(1), greedy(2, 0)) == [wanted("mixtral", 1), wanted("mixtral", 2, 0)]
    engines.close()


def test_pieces_of_all_ranks_are_the_checkpoint(folders):
    engines = Engines(folders("qwen3_moe"), 2, fuse=False)
    whole = worker_families.build("qwen3_moe").model.layers[2].mlp.experts
    pieces = [module.model.layers[2].mlp.experts for module in engines.modules]
    for part in experts.WEIGHTS:
        assert torch.equal(
            torch.cat([getattr(piece, part) for piece in pieces]), getattr(whole, part)
        )
    engines.close()


def test_random_weights_are_those_of_one_engine(folders):
    place = Parallel(TensorGroup(), ThreadLink(0, 1, []))
    one = load_model(
        str(folders("qwen3_moe")), load_format="dummy", dtype="float32", device=CPU, seed=0, parallel=place
    )  # fmt: skip
    engines = Engines(folders("qwen3_moe"), 2, load_format="dummy", fuse=False)
    pieces = [module.model.layers[1].mlp.experts.down_proj for module in engines.modules]
    assert torch.equal(torch.cat(pieces), one.model.layers[1].mlp.experts.down_proj)
    engines.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_of_all_engines_come_in_order_and_unchanged(dtype):
    """One engine has none; another one's pass as bytes, with weights and numbers of experts."""
    counts, group = [3, 0, 2], shared(3)
    given = [
        [
            torch.full((count, 6), rank + 0.125, dtype=dtype),
            torch.arange(count * 2).view(count, 2) + 10 * rank,
            torch.full((count, 2), rank + 0.5),
        ]
        for rank, count in enumerate(counts)
    ]
    with ThreadPoolExecutor(3) as threads:
        found = list(
            threads.map(
                lambda rank: experts.exchanged(given[rank], ThreadGroup(rank, 3, group), counts),
                range(3),
            )
        )
    assert [begin for _, begin in found] == [0, 3, 3]
    for tensors, _ in found:
        for place, tensor in enumerate(tensors):
            assert torch.equal(tensor, torch.cat([of_rank[place] for of_rank in given]))


@pytest.mark.parametrize(
    ("key", "expert"),
    [
        ("model.layers.10.mlp.experts.3.up_proj.weight", 3),
        ("model.layers.10.block_sparse_moe.experts.12.w1.weight", 12),
        ("model.layers.10.mlp.experts.gate_up_proj", None),
    ],
)
def test_the_expert_of_a_stored_tensor(key, expert):
    spread = experts.Shard(experts.EXPERTS, 1, 4)
    assert experts.expert_of(key, spread) == expert
    assert experts.expert_of(key, experts.Shard(-2, 1, 4)) is None
    assert [number for number in range(16) if experts.holds(spread, number, 16)] == [4, 5, 6, 7]


REFUSED = {
    "llama": (
        {},
        r"LlamaForCausalLM \(family 'llama'\) has no experts; leave out --enable-expert-parallel",
    ),
    "phimoe": ({}, "shares out the experts of mixtral, olmoe, qwen2_moe, qwen3_moe, and not"),
    "mixtral": (
        {"data_parallel_size": 3},
        r"has 4 experts, which 3 ranks \(data_parallel_size=3 x tensor_parallel_size=1\) do not divide",
    ),
    "one rank": ({"data_parallel_size": 1}, "with one rank: it has all experts anyway"),
    "stages": ({"pipeline_parallel_size": 2}, "does not go with pipeline_parallel_size=2: experts"),
    "adapters": ({"max_loras": 2}, "does not go with max_loras=2: no adapters"),
    "sharded files": (
        {"load_format": "sharded"},
        "does not go with load_format=sharded: such files",
    ),
    "another first node": ({"expert_rendezvous": ""}, "the first node was started without it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shared_out_is_refused_before_weights_are_read(folders, case):
    settings, text = REFUSED[case]
    folder = folders(case if case in worker_families.FAMILIES else "mixtral")
    usual = {"data_parallel_size": 2, "expert_rendezvous": "file:///x", "load_format": "dummy"}
    context = worker_tools.context(folder, enable_expert_parallel=True, **(usual | settings))
    with pytest.raises(ConfigError, match=text):
        looked(context)


def test_ranks_that_share_experts_decide_alike():
    spread = ExpertGroups(TensorGroup(1, 4), TensorGroup(0, 2))
    place = Parallel(TensorGroup(), ThreadLink(0, 1, []), spread)
    assert place.layer_mates is spread.everyone
    assert not place.is_alone
    alone = Parallel(TensorGroup(0, 2), ThreadLink(0, 1, []))
    assert alone.layer_mates is alone.tensor


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda residency: residency.sleep(2), "weights cannot be dropped and read again while"),
        (lambda residency: residency.check_update("x", None), "weights cannot be replaced while"),
        (lambda residency: residency.update("x", None), "weights cannot be replaced while"),
        (lambda residency: residency.save("", "", None, None), "files of ranks cannot be written"),
    ],
)
def test_what_all_engines_would_have_to_do_together_is_refused(call, text):
    spread = ExpertGroups(TensorGroup(1, 4), TensorGroup(0, 2))
    place = Parallel(TensorGroup(), ThreadLink(0, 1, []), spread)
    model = SimpleNamespace(device=CPU, adapters=None)
    loader = SimpleNamespace(parallel=place, load=lambda _found: model)
    with pytest.raises(ConfigError, match=f"enable_expert_parallel: {text}"):
        call(Residency(loader, None))
