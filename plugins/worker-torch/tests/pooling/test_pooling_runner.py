"""Models that pool run through the worker's runner: features, passes, failing rows, and batches short of memory."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
import worker_tools
from safetensors.torch import load_file, save_file

from tenonry.config import PluginChoice
from tenonry.engine.kv_plan import plan_kv_cache
from tenonry.info import PluginRecord
from tenonry.sampling_params import PoolingParams, SamplingParams
from tenonry.step import NewRow, RowFailure, SchedulerOutput
from tenonry_worker_torch import load_pooling
from tenonry_worker_torch.passes.model_pass import ModelPass
from tenonry_worker_torch.pooling.options import PoolingOptions
from tenonry_worker_torch.pooling.outline import outline
from tenonry_worker_torch.pooling_worker import PoolingWorker
from tenonry_worker_torch.runner.feature import RunnerFeature

RECORD = PluginRecord(
    kind="runner_feature", name="odd", target="tests:Odd", distribution="odd", version="1.0"
)
PROMPTS = ([7, 8, 9, 4, 5], [11], [5, 6, 7, 8] * 9, [4, 4, 9])


class Vectors(RunnerFeature):
    """Keeps the vectors of the last pass."""

    name = "vectors"

    def after(self, step):
        self.found = step.pooled


class Doubled(ModelPass):
    """Changes results."""

    name = "doubled"

    def apply(self, model, facts, changes):
        table = model.module.embeddings.word_embeddings
        changes.set(table, "weight", torch.nn.Parameter(table.weight * 2, requires_grad=False))
        return "1 table"


class Fails(Doubled):
    """Fails after its change."""

    def apply(self, model, facts, changes):
        super().apply(model, facts, changes)
        raise RuntimeError("no such table")


def loaded(folder, **options):
    context = worker_tools.context(folder, options=PoolingOptions(pooling="cls", **options))
    found = outline(str(folder), needs_weights=True, mode="cls")
    return load_pooling.load_pooling(found, context, context.options, {})


def answer(runner, prompts=PROMPTS):
    """Result of a step over whole prompts, one row each."""
    size = runner.state.block_size
    sampling = SamplingParams(temperature=0.0, max_tokens=1, pooling=PoolingParams())
    new = [
        NewRow(
            row=row,
            handle=row + 1,
            token_ids=np.array(ids, np.int32),
            num_computed=0,
            num_output=0,
            block_ids=(16 * row + np.arange(-(-len(ids) // size), dtype=np.int32),),
            sampling=sampling,
        )
        for row, ids in enumerate(prompts)
    ]
    count = len(new)
    output = SchedulerOutput(
        step_id=0,
        new=new,
        row=np.arange(count, dtype=np.int32),
        num_tokens=np.array([len(ids) for ids in prompts], np.int32),
        next_token=np.full(count, -1, np.int32),
        samples=np.ones(count, np.bool_),
    )
    return runner.answer(output).result()


def assert_right(pooled, model, prompts=PROMPTS):
    for row, ids in enumerate(prompts):
        with torch.inference_mode():
            state = model(torch.tensor([ids])).last_hidden_state[0, 0]
        expected = torch.nn.functional.normalize(state, dim=0).numpy()
        np.testing.assert_allclose(pooled[row], expected, atol=1e-5)


def test_a_feature_of_another_package_sees_the_vectors(folders):
    folder, model = folders["bert"]
    runner = worker_tools.runner(loaded(folder), features=[(Vectors, RECORD)])
    pooled = answer(runner).pooled
    assert_right(pooled, model)
    assert runner.features.of(Vectors).found is pooled


@pytest.mark.parametrize("kind", [Doubled, Fails])
def test_a_pass_that_changes_results_or_raises_is_left_out(folders, caplog, kind):
    folder, model = folders["bert"]
    made = loaded(folder, model_passes=(PluginChoice(name=f"{__file__}:{kind.__name__}"),))
    assert "model pass 'doubled of" in caplog.text
    assert "is left out" in caplog.text
    assert made.passes.used == []
    assert made.passes["packing"].text == "no layer is large enough"
    assert_right(answer(worker_tools.runner(made)).pooled, model)


def test_a_batch_short_of_memory_is_computed_in_parts(folders, monkeypatch, caplog):
    folder, model = folders["bert"]
    made = loaded(folder)
    run = made.pooler.run
    sizes = []

    def scarce(token_ids, lengths, starts):
        sizes.append(len(lengths))
        if len(lengths) > 1:
            raise torch.OutOfMemoryError("too many prompts")
        return run(token_ids, lengths, starts)

    monkeypatch.setattr(made.pooler, "run", scarce)
    assert_right(answer(worker_tools.runner(made)).pooled, model)
    assert max(sizes) > 1
    assert "computed in smaller parts" in caplog.text


def test_a_row_without_a_finite_vector_fails_alone(folders, tmp_path):
    folder, _ = folders["bert"]
    copy = shutil.copytree(folder, tmp_path / "damaged")
    weights = load_file(copy / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][95] = float("nan")
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    made = answer(worker_tools.runner(loaded(copy)), [[7, 8, 9], [5, 95], [11]])
    assert made.failed_row.tolist() == [1]
    assert made.failed_code.tolist() == [RowFailure.NUMERICAL]
    assert made.row.tolist() == [0, 2]
    assert sorted(made.pooled) == [0, 2]


def test_steps_of_a_model_that_pools_are_profiled(folders, tmp_path):
    folder, model = folders["bert"]
    options = PoolingOptions(pooling="cls", profile_dir=str(tmp_path))
    context = worker_tools.context(folder, options=options)
    worker = PoolingWorker(context)
    worker.load()
    groups = list(worker.kv_cache_groups())
    memory = [worker.available_memory()]
    worker.initialize_cache(plan_kv_cache([groups], memory, context.config, context.max_model_len))
    worker.profile()
    assert_right(answer(worker.runner).pooled, model)
    worker.profile(is_start=False)
    assert list(tmp_path.iterdir())
    worker.shutdown()
