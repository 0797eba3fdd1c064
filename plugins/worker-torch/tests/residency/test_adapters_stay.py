"""Adapters stay while weights under them leave, come back and change (AF-7, AF-14). Oracle: peft on these weights."""

from __future__ import annotations

import copy
import shutil

import lora_tools
import pytest
import torch
import worker_families
import worker_tools
from safetensors.torch import save_file
from worker_driver import Driver, Request

from tenonry.engine.kv_plan import plan_kv_cache
from tenonry.errors import ModelError
from tenonry.step import DoneFuture
from tenonry_worker_torch.adapters.targets import LoraTargets
from tenonry_worker_torch.options import TorchOptions
from tenonry_worker_torch.worker import TorchWorker

pytestmark = pytest.mark.slow  # whole models

RANKS = (1, 3, 4)
ROWS = ("a1", None, "a3", "a4", "a3")
PROMPTS = worker_tools.prompts((5, 17, 9, 3, 12))


def changed(model):
    """The same model with other matrices."""
    made = copy.deepcopy(model)
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() > 1:
                weight.add_(torch.randn_like(weight) * weight.std())
    return made


class Bases:
    """Two models, each with the same adapters on it, in folders."""

    def __init__(self, folder):
        self.model = folder / "model"
        self.update = str(folder / "new.safetensors")
        first = worker_families.build("llama")
        second = changed(first)
        first.save_pretrained(self.model)
        state = {name: weight.clone() for name, weight in second.state_dict().items()}
        if second.config.tie_word_embeddings:
            del state["lm_head.weight"]
        save_file(state, self.update)
        self.pefts = [
            lora_tools.Peft(model, folder / name, RANKS)
            for name, model in (("first", first), ("second", second))
        ]
        files = [
            (folder / name / "a3" / "adapter_model.safetensors").read_bytes()
            for name in ("first", "second")
        ]
        assert files[0] == files[1]
        self.wanted = [
            [peft.generate(name, prompt) for name, prompt in zip(ROWS, PROMPTS, strict=True)]
            for peft in self.pefts
        ]


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    made = Bases(tmp_path_factory.mktemp("bases"))
    for before, after in zip(*made.wanted, strict=True):
        assert before != after
    return made


def started(bases, *, fuse=True, **config):
    settings = {"max_loras": 3, "max_num_seqs": 6, "num_gpu_blocks_override": 64, **config}
    context = worker_tools.context(bases.model, options=TorchOptions(fuse=fuse), **settings)
    worker = TorchWorker(context)
    worker.load()
    plan = plan_kv_cache(
        [list(worker.kv_cache_groups())],
        [worker.available_memory()],
        context.config,
        context.max_model_len,
    )
    worker.initialize_cache(plan)
    return worker


def load(worker, bases, ranks=RANKS):
    for rank in ranks:
        worker.call("add_lora", [f"a{rank}", bases.pefts[0].path(f"a{rank}")])


def requests_of(worker):
    adapters = worker.residency.adapters
    return [
        Request(
            number + 1,
            prompt,
            max_tokens=lora_tools.NUM_TOKENS,
            adapter=None if name is None else lora_tools.loaded(adapters, name),
        )
        for number, (name, prompt) in enumerate(zip(ROWS, PROMPTS, strict=True))
    ]


def served(worker, execute=None):
    driver = Driver(
        execute or (lambda output: DoneFuture(worker.execute_model(output))),
        max_num_seqs=6,
        num_blocks=64,
        block_size=worker.runner.state.block_size,
    )
    return [request.output for request in driver.run(requests_of(worker))]


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.slow
def test_tokens_are_those_of_peft_on_the_weights_that_are_there(bases, fuse):
    worker = started(bases, fuse=fuse)
    load(worker, bases)
    first, second = bases.wanted
    assert served(worker) == first
    worker.check_update(bases.update)
    worker.update_weights(bases.update)
    assert served(worker) == second
    worker.sleep(2)
    worker.wake_up()
    assert served(worker) == first  # level 2 ends an update
    worker.sleep(2)
    worker.update_weights(bases.update)
    worker.wake_up()
    assert served(worker) == second
    worker.sleep(1)
    worker.wake_up()
    assert served(worker) == second
    worker.shutdown()


def test_they_come_and_go_while_the_weights_are_away(bases, tmp_path):
    folder = tmp_path / "a4"
    shutil.copytree(bases.pefts[0].path("a4"), folder)
    worker = started(bases, lora_modules=[f"a4={folder}"])
    load(worker, bases, (1,))
    shutil.rmtree(folder)  # it was read already
    worker.sleep(2)
    assert [text.partition("@")[0] for text in worker.call("list_loras")] == ["a4", "a1"]
    load(worker, bases, (3,))
    assert worker.call("pin_lora", ["a3"])
    worker.wake_up()
    assert served(worker) == bases.wanted[0]
    worker.call("remove_lora", ["a4"])
    worker.sleep(2)
    worker.wake_up()
    assert [text.partition("@")[0] for text in worker.call("list_loras")] == ["a1", "a3"]
    with pytest.raises(ModelError, match="a4' is no folder"):
        worker.call("add_lora", ["a4", str(folder)])
    worker.shutdown()


def test_memory_of_their_slots_goes_with_the_model(bases):
    worker = started(bases)
    load(worker, bases)
    assert served(worker) == bases.wanted[0]
    adapters = worker.residency.adapters
    worker.sleep(2)
    assert adapters.layers == []
    assert adapters.step.full is None
    worker.shutdown()


def test_an_update_that_fails_leaves_them_for_the_next_good_one(bases, tmp_path):
    worker = started(bases)
    load(worker, bases)
    assert served(worker) == bases.wanted[0]
    name = "model.layers.1.mlp.down_proj.weight"
    model = worker_families.build("llama")
    broken = torch.full_like(model.get_parameter(name), torch.nan)
    save_file({name: broken}, tmp_path / "bad.safetensors")
    with pytest.raises(ModelError):
        worker.update_weights(str(tmp_path / "bad.safetensors"))
    worker.update_weights(bases.update)
    worker.wake_up()
    assert served(worker) == bases.wanted[1]
    worker.shutdown()


def test_a_model_that_has_no_place_for_one_any_more_is_refused_by_name(bases, monkeypatch):
    """As if the layers of new weights ran in another way: they would answer without the adapter."""
    worker = started(bases)
    load(worker, bases, (3,))
    made = LoraTargets.__init__

    def without_one(self, whole, part):
        made(self, whole, part)
        self.refuse("model.layers.1.mlp.down_proj", "not run")

    monkeypatch.setattr(LoraTargets, "__init__", without_one)
    with pytest.raises(ModelError, match=r"adapter 'a3' adds to model\.layers\.1\.mlp\.down_proj"):
        worker.update_weights(bases.update)
    assert worker.is_sleeping()
    worker.call("remove_lora", ["a3"])
    worker.update_weights(bases.update)
    assert not worker.is_sleeping()
    worker.shutdown()
