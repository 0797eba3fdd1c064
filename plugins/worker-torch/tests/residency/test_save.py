"""Weights saved per rank load into the same tokens, also of layers that were fused, sharded and converted (SV-1); new
weights are sharded like those of the start. Oracle: `generate` of transformers.
"""

from __future__ import annotations

import json

import pytest
import torch
import worker_families
import worker_tools
from parallel_tools import Ranks
from safetensors import safe_open
from worker_driver import Driver, Request

from tenonry.errors import ConfigError, ModelError
from tenonry_torch_base.buffers import HostBuffers
from tenonry_torch_base.parallel.sharded import read_index
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.loading.load import look
from tenonry_worker_torch.residency.plain import plain_weights
from tenonry_worker_torch.residency.reload import RankReload
from tenonry_worker_torch.residency.save import checked_pattern, parts_of, save_rank
from tenonry_worker_torch.residency.update import WeightUpdate


def answers(ranks):
    driver = Driver(ranks.answer, max_num_seqs=6, num_blocks=96, block_size=4)
    requests = [
        Request(number + 1, prompt, max_tokens=12)
        for number, prompt in enumerate(worker_tools.prompts())
    ]
    return [request.output for request in driver.run(requests)]


def save(ranks, source, target, **options):
    found = look(str(source), load_format="auto")
    values = {"pattern": None, "max_size": None} | options
    for model in ranks.models:
        kept = RankReload(found, model.parallel).kept(plain_weights(model), set())
        save_rank(model.module, kept, model.parallel, str(source), str(target), **values)


@pytest.mark.parametrize(
    ("family", "tp", "pp"),
    [
        ("llama-biased", 1, 1),
        ("llama-biased", 2, 1),
        ("llama-biased", 1, 2),
        ("mixtral", 1, 1),
        ("mixtral", 2, 1),
        ("mixtral", 1, 2),
    ],
)
@pytest.mark.slow
def test_what_ranks_save_they_load(tmp_path, family, tp, pp):
    worker_families.save(family, tmp_path / "model")
    ranks = Ranks(tmp_path / "model", tp, pp)
    save(ranks, tmp_path / "model", tmp_path / "saved", max_size=20_000)
    ranks.close()
    again = Ranks(tmp_path / "saved", tp, pp, load_format="sharded")
    assert answers(again) == worker_tools.generated(family)
    again.close()


def test_names_are_those_of_the_checkpoint(tmp_path):
    """Experts are stored one by one, and stacked on loading."""
    worker_families.save("mixtral", tmp_path / "model")
    ranks = Ranks(tmp_path / "model")
    save(ranks, tmp_path / "model", tmp_path / "saved", pattern="{rank}-of-{part}.safetensors")
    ranks.close()

    def names(path):
        with safe_open(path, "pt") as file:
            return set(file.keys())

    stored = names(tmp_path / "model" / "model.safetensors")
    assert names(tmp_path / "saved" / "0-of-0.safetensors") == stored
    assert (tmp_path / "saved" / "config.json").exists()


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2), (2, 2)])
@pytest.mark.slow
def test_new_weights_are_cut_as_those_of_the_start(tmp_path, tp, pp):
    worker_families.save("llama-biased", tmp_path / "model")
    worker_families.build("llama-biased", seed=5).save_pretrained(tmp_path / "new")
    ranks = Ranks(tmp_path / "model", tp, pp)
    found = look(str(tmp_path / "model"), load_format="auto")
    cpu = torch.device("cpu")
    modules = []
    for model in ranks.models:
        update = WeightUpdate(str(tmp_path / "new"), None, found)
        reload = RankReload(found, model.parallel)
        kept = reload.kept(plain_weights(model), update.names)
        modules.append(reload.make(kept, update, "float32", cpu))
    before = ranks.models
    ranks.models = ranks.all(
        lambda rank: build(
            modules[rank],
            BuildPlan(
                worker_tools.BACKENDS["cpu"],
                HostBuffers(cpu, 1),
                max_model_len=64,
                fuse=True,
                skip_check=False,
                parallel=before[rank].parallel,
            ),
        )
    )
    for runner, model in zip(ranks.runners, ranks.models, strict=True):
        runner.release()
        runner.adopt(model)
        runner.allocate()
    new = worker_families.build("llama-biased", seed=5)
    assert answers(ranks) == [worker_tools.greedy(new, prompt) for prompt in worker_tools.prompts()]
    ranks.close()


class TestRefusals:
    def test_patterns_that_are_no_file_names(self):
        for pattern in ("a.safetensors", "{rank}.safetensors", "x/{rank}{part}.safetensors", "{rank}{part}.bin",
                        "{rank}{part}{more}.safetensors", "../{rank}{part}.safetensors"):  # fmt: skip
            with pytest.raises(ConfigError, match="must be a file name"):
                checked_pattern(pattern)

    def test_another_layout_and_half_a_folder(self, tmp_path):
        worker_families.save("llama", tmp_path / "model")
        ranks = Ranks(tmp_path / "model")
        save(ranks, tmp_path / "model", tmp_path / "saved")
        with pytest.raises(ConfigError, match="the model's own folder"):
            save(ranks, tmp_path / "model", tmp_path / "model")
        ranks.close()
        with pytest.raises(ModelError, match="saved with tensor_parallel_size=1"):
            Ranks(tmp_path / "saved", 2, load_format="sharded")
        with pytest.raises(ModelError, match="holds no weights for rank 0"):
            look(str(tmp_path / "model"), load_format="sharded")
        index = tmp_path / "saved" / "tenonry-rank-0.json"
        said = json.loads(index.read_text())
        file = tmp_path / "saved" / next(iter(said["files"]))
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(ModelError, match="which is not so"):
            read_index(str(tmp_path / "saved"), 0)
        index.write_text(json.dumps(said | {"files": {"../x": 1}}))
        with pytest.raises(ModelError, match="which is not so"):
            read_index(str(tmp_path / "saved"), 0)


def test_parts_are_as_large_as_they_may_be():
    weights = {name: torch.zeros(10) for name in "dcba"}
    assert [list(part) for part in parts_of(weights, 80)] == [["a", "b"], ["c", "d"]]
    assert [list(part) for part in parts_of(weights, 1)] == [["a"], ["b"], ["c"], ["d"]]
