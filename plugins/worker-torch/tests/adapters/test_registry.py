"""Adapters come and go between steps; rows keep theirs, and slots go to those that steps need (EC-13, AF-15)."""

from __future__ import annotations

import copy
import shutil

import lora_tools
import pytest
import worker_driver
import worker_families
import worker_tools

from tenonry.errors import ConfigError, ModelError, RequestError
from tenonry.step import Adapter, RowFailure
from tenonry_worker_torch.adapters.registry import Adapters
from tenonry_worker_torch.worker import TorchWorker

pytestmark = pytest.mark.slow  # whole models

RANKS = (1, 3, 4)
PROMPT = worker_tools.prompts((9,))[0]


@pytest.fixture(scope="module")
def module():
    return worker_families.build("llama")


@pytest.fixture(scope="module")
def peft(module, tmp_path_factory):
    return lora_tools.Peft(module, tmp_path_factory.mktemp("adapters"), ranks=RANKS)


@pytest.fixture
def runner(module):
    return lora_tools.runner(copy.deepcopy(module), max_loras=2)


def answers(runner, *adapters):
    requests = [
        worker_driver.Request(number + 1, PROMPT, max_tokens=lora_tools.NUM_TOKENS, adapter=adapter)
        for number, adapter in enumerate(adapters)
    ]
    driver = worker_driver.Driver(runner.answer, max_num_seqs=12, num_blocks=160, block_size=4)
    return driver.run(requests)


def tokens(runner, *adapters):
    return [request.output for request in answers(runner, *adapters)]


def test_more_adapters_than_slots_take_turns(runner, peft):
    for name in ("a1", "a3", "a4"):
        runner.model.adapters.add(name, peft.path(name))
    for pair in (("a1", "a3"), ("a4", "a1"), ("a3", "a4"), ("a1", "a4")):
        adapters = [lora_tools.loaded(runner.model.adapters, name) for name in pair]
        assert tokens(runner, *adapters) == [peft.generate(name, PROMPT) for name in pair]


def test_one_under_two_names_takes_one_slot(module, peft):
    """Schedulers count contents, and so must a step."""
    runner = lora_tools.runner(copy.deepcopy(module), max_loras=1)
    adapters = runner.model.adapters
    for name in ("first", "second"):
        adapters.add(name, peft.path("a3"))
    assert adapters.pin("first")
    pair = [lora_tools.loaded(adapters, name) for name in ("first", "second")]
    assert tokens(runner, *pair) == [peft.generate("a3", PROMPT)] * 2
    adapters.remove("first")
    assert [name.partition("@")[0] for name in adapters.names()] == ["second"]
    assert tokens(runner, pair[1]) == [peft.generate("a3", PROMPT)]
    adapters.remove("second")
    assert answers(runner, pair[1])[0].failure is RowFailure.ADAPTER
    adapters.add("second", peft.path("a1"))
    second = lora_tools.loaded(adapters, "second")
    assert tokens(runner, second) == [peft.generate("a1", PROMPT)]


def test_a_pinned_one_keeps_its_slot(runner, peft):
    for name in ("a1", "a3", "a4"):
        runner.model.adapters.add(name, peft.path(name))
    assert runner.model.adapters.pin("a1")
    found = {name: lora_tools.loaded(runner.model.adapters, name) for name in ("a1", "a3", "a4")}
    tokens(runner, found["a1"], found["a3"])
    slot = runner.model.adapters._by_name["a1"].slot
    tokens(runner, found["a3"])
    tokens(runner, found["a4"])
    tokens(runner, found["a3"])
    assert runner.model.adapters._by_name["a1"].slot == slot
    assert tokens(runner, found["a3"], found["a4"]) == [
        peft.generate("a3", PROMPT),
        peft.generate("a4", PROMPT),
    ]


def test_a_step_with_too_many_is_the_schedulers_fault(runner, peft):
    for name in ("a1", "a3", "a4"):
        runner.model.adapters.add(name, peft.path(name))
    adapters = [lora_tools.loaded(runner.model.adapters, name) for name in ("a1", "a3", "a4")]
    with pytest.raises(RuntimeError, match="more adapters than max_loras=2"):
        answers(runner, *adapters)


def test_the_same_name_with_other_content_has_another_digest(runner, peft, tmp_path):
    runner.model.adapters.add("style", peft.path("a1"))
    first = lora_tools.loaded(runner.model.adapters, "style")
    assert runner.model.adapters.add("style", peft.path("a1"))
    assert lora_tools.loaded(runner.model.adapters, "style") == first
    runner.model.adapters.add("style", peft.path("a3"))
    second = lora_tools.loaded(runner.model.adapters, "style")
    assert first.digest != second.digest
    assert tokens(runner, second) == [peft.generate("a3", PROMPT)]
    assert answers(runner, first)[0].failure == RowFailure.ADAPTER


def test_one_that_is_refused_changes_nothing(runner, peft, tmp_path):
    runner.model.adapters.add("style", peft.path("a1"))
    before = runner.model.adapters.names()
    shutil.copytree(peft.path("a3"), tmp_path / "bad")
    (tmp_path / "bad" / "adapter_model.safetensors").write_bytes(b"none")
    with pytest.raises(ModelError):
        runner.model.adapters.add("style", str(tmp_path / "bad"))
    assert runner.model.adapters.names() == before
    assert tokens(runner, lora_tools.loaded(runner.model.adapters, "style")) == [
        peft.generate("a1", PROMPT)
    ]


def test_no_more_are_kept_than_the_bound(module, peft, tmp_path):
    """One under two names counts once, one of a removed name until its rows end not at all."""
    adapters = lora_tools.runner(copy.deepcopy(module), max_loras=2, max_kept=2).model.adapters
    adapters.add("a1", peft.path("a1"))
    adapters.add("a3", peft.path("a3"))
    adapters.add("again", peft.path("a1"))
    with pytest.raises(
        ModelError, match=r"max_cpu_loras=2 adapters.*\['a3', 'again'\]; unload one"
    ):
        adapters.add("a4", peft.path("a4"))
    assert len(adapters.names()) == 3
    adapters.add("a3", peft.path("a4"))  # in place of the one of that name
    adapters.remove("a1")
    with pytest.raises(ModelError, match="max_cpu_loras=2"):
        adapters.add("a1", peft.path("a3"))
    adapters.remove("again")
    adapters.add("a1", peft.path("a3"))


def test_rows_keep_an_adapter_that_is_removed(runner, peft):
    runner.model.adapters.add("style", peft.path("a4"))
    adapter = lora_tools.loaded(runner.model.adapters, "style")
    steps = 0

    def execute(output):
        nonlocal steps
        steps += 1
        if steps == 3:
            runner.model.adapters.remove("style")
        return runner.answer(output)

    request = worker_driver.Request(1, PROMPT, max_tokens=lora_tools.NUM_TOKENS, adapter=adapter)
    worker_driver.Driver(execute, max_num_seqs=12, num_blocks=160, block_size=4).run([request])
    assert request.output == peft.generate("a4", PROMPT)
    assert runner.model.adapters.names() == []
    assert not runner.model.adapters._by_number  # with its last row, the weights went


def test_a_row_whose_adapter_is_not_there_fails_and_no_other(runner, peft):
    runner.model.adapters.add("a1", peft.path("a1"))
    adapter = lora_tools.loaded(runner.model.adapters, "a1")
    lost, found, plain = answers(runner, Adapter("gone", "00"), adapter, None)
    assert lost.failure == RowFailure.ADAPTER
    assert lost.output == []
    assert found.output == peft.generate("a1", PROMPT)
    assert plain.output == peft.generate(None, PROMPT)


def test_content_does_not_come_back_while_a_row_misses_it(runner, peft):
    """Or a request could find K/V that was computed without it."""
    runner.model.adapters.add("a1", peft.path("a1"))
    adapter = lora_tools.loaded(runner.model.adapters, "a1")
    runner.model.adapters.remove("a1")

    def execute(output):
        future = runner.answer(output)
        if len(output.row):
            with pytest.raises(ModelError, match="still runs"):
                runner.model.adapters.add("a1", peft.path("a1"))
        return future

    request = worker_driver.Request(1, PROMPT, adapter=adapter)
    worker_driver.Driver(execute, max_num_seqs=12, num_blocks=160, block_size=4).run([request])
    assert request.failure == RowFailure.ADAPTER
    assert runner.model.adapters.add("a1", peft.path("a1"))


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb"])
def test_names_that_are_none(runner, peft, name):
    with pytest.raises(ModelError, match="1 to 128 printable characters"):
        runner.model.adapters.add(name, peft.path("a1"))


@pytest.mark.parametrize("call", ["remove", "pin"])
def test_unknown_ones_are_named(runner, call):
    with pytest.raises(RequestError, match="the adapter 'x' is not loaded; there are none"):
        getattr(runner.model.adapters, call)("x")


def test_rows_without_an_adapter_make_no_batch(runner, peft):
    runner.model.adapters.add("a1", peft.path("a1"))
    adapter = lora_tools.loaded(runner.model.adapters, "a1")
    tokens(runner, adapter)
    assert tokens(runner, None) == [peft.generate(None, PROMPT)]
    assert runner.model.adapters.step.full is None


def test_a_dummy_step_reads_no_batch_of_an_earlier_one(runner, peft):
    runner.model.adapters.add("a1", peft.path("a1"))
    adapter = lora_tools.loaded(runner.model.adapters, "a1")
    tokens(runner, adapter)
    assert runner.model.adapters.step.full is not None
    runner.forward_pass.dummy()
    assert runner.model.adapters.step.full is None


def test_the_worker_says_how_to_start_with_adapters(module, tmp_path):
    module.save_pretrained(tmp_path)
    worker = TorchWorker(worker_tools.context(tmp_path))
    worker.load()
    with pytest.raises(ConfigError, match=r"max_loras=0: .* start with --max-loras"):
        worker.call("add_lora", ["a", "/a"])
    worker.shutdown()
    worker = TorchWorker(worker_tools.context(tmp_path, max_loras=2, pipeline_parallel_size=2))
    with pytest.raises(ConfigError, match="max_loras=2 does not go with pipeline_parallel_size=2"):
        worker.load()


def test_an_adapter_cannot_have_a_name_of_the_model():
    adapters = Adapters(None, 1, 16, model_names=("served", "alias"))
    for name in ("served", "alias"):
        with pytest.raises(ModelError, match=f"'{name}' is a name of the model itself"):
            adapters.add(name, "anywhere")
