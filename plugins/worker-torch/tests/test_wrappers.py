"""The text part of multimodal models: greedy tokens equal the wrapper's own generate, in float32."""

from __future__ import annotations

import functools
import json
import shutil

import pytest
import torch
import worker_tools
import worker_wrappers
from parallel_tools import Ranks
from safetensors.torch import load_file, save_file
from worker_driver import Driver, Request

from tenonry.errors import ModelError
from tenonry_testkit.tiers import nightly_unless
from tenonry_torch_base.checkpoint import Checkpoint
from tenonry_torch_base.weights import read_model_config, skeleton
from tenonry_worker_torch.loading.load import load_model
from tenonry_worker_torch.worker import TorchWorker

pytestmark = pytest.mark.slow  # whole models

WAYS = {
    "one big batch": {},
    "chunked prefill": {"budget": 7},
    "two steps in flight": {"depth": 2},
    "preempted": {"budget": 11, "depth": 2, "preempt_every": 5},
}
CPU = torch.device("cpu")
WRAPPERS = nightly_unless(lambda name: name in worker_wrappers.USUAL, worker_wrappers.WRAPPERS)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Folder of a wrapper's checkpoint, written once, under the names that the hub has."""

    @functools.cache
    def written(wrapper):
        folder = tmp_path_factory.mktemp(wrapper)
        worker_wrappers.build(wrapper).save_pretrained(folder)
        return folder

    return written


@functools.cache
def generated(wrapper):
    model = worker_wrappers.build(wrapper)
    return [worker_tools.greedy(model, prompt) for prompt in worker_tools.prompts(vocab_size=90)]


@pytest.fixture(scope="module")
def served(checkpoint):
    @functools.cache
    def model_of(wrapper):
        module = load_model(
            str(checkpoint(wrapper)), load_format="auto", dtype="float32", device=CPU, seed=0
        )
        return worker_tools.loaded(module)

    return model_of


def requests():
    return [
        Request(number + 1, prompt, max_tokens=worker_tools.OUTPUT_LENGTH)
        for number, prompt in enumerate(worker_tools.prompts(vocab_size=90))
    ]


def serve(answer, **way):
    driver = Driver(answer, max_num_seqs=6, num_blocks=96, block_size=4, **way)
    return [request.output for request in driver.run(requests())]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.slow
@pytest.mark.nightly_after(3)
def test_tokens_equal_the_wrappers_own_generate(served, wrapper):
    runner = worker_tools.runner(served(wrapper))
    assert serve(runner.answer, **WAYS["preempted"]) == generated(wrapper)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrapper", ["gemma3", "qwen2_vl"])
def test_tokens_equal_generate_in_every_way(served, wrapper, way):
    runner = worker_tools.runner(served(wrapper))
    assert serve(runner.answer, **WAYS[way]) == generated(wrapper)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_fused_layers_find_the_inner_text_model(served, wrapper):
    is_fused = type(served(wrapper).forward).__name__ == "FusedForward"
    assert is_fused == (wrapper not in worker_wrappers.OWN_CODE)


def test_a_placeholder_with_an_embedding_of_its_own_keeps_it(served):
    """Granite Speech embeds its audio token as token 0: the text model alone would not."""
    prompt = [5, 90, 17, 90]
    request = Request(1, prompt, max_tokens=8)
    runner = worker_tools.runner(served("granite_speech"))
    Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4).run([request])
    model = worker_wrappers.build("granite_speech")
    assert request.output == worker_tools.greedy(model, prompt)[:8]
    inner = model.model.language_model
    tokens = torch.tensor([prompt])
    with torch.inference_mode():
        assert not torch.equal(inner(tokens)[0], inner(tokens * (tokens != 90))[0])


@pytest.mark.parametrize("wrapper", ["gemma3", "llava"])
@pytest.mark.slow
def test_ranks_share_the_text_part(checkpoint, wrapper):
    """Two pipeline stages, cut in two: the plans of the text model hold inside its wrapper."""
    ranks = Ranks(checkpoint(wrapper), 2, 2)
    assert serve(ranks.answer, budget=17) == generated(wrapper)
    assert {type(model.forward).__name__ for model in ranks.models} == {"FusedForward"}
    ranks.close()


@pytest.mark.parametrize("wrapper", ["gemma3", "qwen2_vl"])
@pytest.mark.slow
def test_random_weights_do_not_depend_on_the_layout(checkpoint, wrapper):
    one, two = (Ranks(checkpoint(wrapper), size, load_format="dummy") for size in (1, 2))
    assert serve(one.answer) == serve(two.answer)
    one.close()
    two.close()


@pytest.mark.parametrize("wrapper", ["gemma3", "phi4_multimodal", "qwen2_audio"])
def test_towers_are_neither_built_nor_read(checkpoint, wrapper, monkeypatch):
    """Only tensors of the text part are read from the file; no parameter of a tower exists."""
    read = read_tensors(monkeypatch)
    folder = checkpoint(wrapper)
    module = load_model(str(folder), load_format="auto", dtype="float32", device=CPU, seed=0)
    towers = ("vision", "image", "audio", "projector")
    assert not [name for name, _ in module.named_parameters() if any(t in name for t in towers)]
    whole = worker_wrappers.build(wrapper)
    assert sum(part.numel() for part in module.parameters()) < sum(
        part.numel() for part in whole.parameters()
    )
    assert read
    assert not [name for name in read if any(tower in name for tower in towers)]


@pytest.mark.parametrize("wrapper", ["gemma3", "llava", "qwen2_vl"])
def test_newer_names_of_tensors_load_as_well(checkpoint, served, wrapper, tmp_path):
    """`model.language_model.…`, as modules are called, in addition to the `language_model.model.…` of older
    checkpoints.
    """
    shutil.copy(checkpoint(wrapper) / "config.json", tmp_path)
    whole = worker_wrappers.build(wrapper)
    tensors = {name: weight.clone() for name, weight in whole.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    module = load_model(str(tmp_path), load_format="auto", dtype="float32", device=CPU, seed=0)
    wanted = served(wrapper).module.state_dict()
    assert wanted.keys() == module.state_dict().keys()
    assert all(torch.equal(wanted[name], tensor) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize("wrapper", ["gemma3", "qwen2_audio", "llava"])
@pytest.mark.slow
def test_a_shard_that_only_towers_need_may_be_absent_or_broken(
    checkpoint, served, wrapper, tmp_path
):
    """The facts name it. A shard with a weight of the text part stops the start before anything is read."""
    tower, text = in_two_files(checkpoint(wrapper), tmp_path)
    whole = TorchWorker(worker_tools.context(tmp_path)).examine()
    assert "files_not_needed" not in whole.features
    data = (tmp_path / tower).read_bytes()
    for kept in (data[:-1], data[:20], None):  # truncated, the header too, and not there
        (tmp_path / tower).unlink()
        if kept is not None:
            (tmp_path / tower).write_bytes(kept)
        facts = TorchWorker(worker_tools.context(tmp_path)).examine()
        assert facts.features["files_not_needed"] == [tower]
        assert facts.stored_bytes == whole.stored_bytes > 0
        if wrapper == "gemma3":
            load_model(str(tmp_path), load_format="auto", dtype="float32", device=CPU, seed=0)
    module = load_model(str(tmp_path), load_format="auto", dtype="float32", device=CPU, seed=0)
    wanted = served(wrapper).module.state_dict()
    assert wanted.keys() == module.state_dict().keys()
    assert all(torch.equal(wanted[name], tensor) for name, tensor in module.state_dict().items())
    (tmp_path / tower).touch()
    (tmp_path / text).write_bytes((tmp_path / text).read_bytes()[:-1])
    with pytest.raises(ModelError, match=rf"{text} is truncated"):
        TorchWorker(worker_tools.context(tmp_path)).examine()
    (tmp_path / text).unlink()
    with pytest.raises(ModelError, match=rf"lacks 1 of the 2 weight files .*\({text}\)"):
        TorchWorker(worker_tools.context(tmp_path)).examine()


def in_two_files(folder, target):
    """The checkpoint again, with an index: names of the file for the towers alone, and of the one for text."""
    shutil.copy(folder / "config.json", target)
    architecture = "a wrapper"
    config = read_model_config(str(folder), architecture)
    found = Checkpoint(folder, skeleton(config, architecture, str(folder)))
    files = {"towers.safetensors": {}, "text.safetensors": {}}
    for file in folder.glob("*.safetensors"):
        for name, tensor in load_file(file).items():
            kind = "text.safetensors" if name in found.tensors else "towers.safetensors"
            files[kind][name] = tensor
    for name, tensors in files.items():
        assert tensors, f"{name} would be empty"
        save_file(tensors, target / name, {"format": "pt"})
    weight_map = {tensor: name for name, tensors in files.items() for tensor in tensors}
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tuple(files)


def read_tensors(monkeypatch):
    """Names of the tensors whose values are taken out of safetensors files from now on."""
    import safetensors

    read = []
    opened = safetensors.safe_open

    class Slice:
        def __init__(self, name, inner):
            self.name, self.inner = name, inner

        def __getitem__(self, key):
            read.append(self.name)
            return self.inner[key]

        def __getattr__(self, name):
            return getattr(self.inner, name)

    class File:
        def __init__(self, *arguments, **options):
            self.inner = opened(*arguments, **options)

        def get_slice(self, name):
            return Slice(name, self.inner.get_slice(name))

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def __enter__(self):
            self.inner.__enter__()
            return self

        def __exit__(self, *error):
            return self.inner.__exit__(*error)

    monkeypatch.setattr(safetensors, "safe_open", File)
    return read
