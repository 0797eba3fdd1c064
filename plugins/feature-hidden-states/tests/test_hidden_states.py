"""The conformance suite over `hidden-states`, and its files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tenonry import LLM, SamplingParams
from tenonry.plugin.manager import resolve_point
from tenonry_feature_hidden_states import HiddenStates
from tenonry_testkit.runner_feature import RunnerFeatureContract

HIDDEN = 64


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.nightly
class TestHiddenStates(RunnerFeatureContract):
    feature = "hidden-states"


def test_name_leads_to_the_class():
    assert resolve_point(RunnerFeatureContract.point, "hidden-states")[0] is HiddenStates


def states_of(prompts: list[list[int]], **settings) -> dict[int, np.ndarray]:
    """Lines of the file of each request, by the number of its handle."""
    option = {"name": "hidden-states", "options": {"folder": "states"}}
    worker = {"name": "torch", "options": {"runner_features": [option]}}
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with LLM(model="demo", worker=worker, device="cpu", dtype="float32", **settings) as llm:
        outputs = llm.generate(prompts, params)
    assert all(len(output.outputs[0].token_ids) == 6 for output in outputs)
    files = sorted(Path("states").glob("*.f32"), key=lambda file: int(file.stem, 16))
    return {int(file.stem, 16): np.fromfile(file, np.float32) for file in files}


@pytest.mark.integration
def test_each_sampled_token_has_a_line_also_after_preemption():
    prompts = [[9, 8, 7, 6 + n] for n in range(4)]
    plain = states_of(prompts, max_num_seqs=4)
    pressed = states_of(prompts, max_num_seqs=4, num_gpu_blocks_override=3, block_size=4)
    ours = [*plain.values()][-4:]
    sizes = {len(each) for each in ours}
    assert len(sizes) == 1
    assert sizes.pop() % 6 == 0
    for one, other in zip(ours, [*pressed.values()][-4:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
