"""Sleep, wake-up and new weights of one rank (AF-14, EC-13). Oracle: `generate` of transformers with the weights that
should be there.
"""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools
from residency_tools import answers, changed, started, wanted
from safetensors.torch import save_file

from tenonry.errors import ConfigError
from tenonry_worker_torch.residency.plain import plain_weights

pytestmark = pytest.mark.slow  # whole models


@pytest.fixture(scope="module", params=["llama-biased", "mixtral"])
def family(request):
    return request.param


@pytest.fixture
def folder(tmp_path, family):
    worker_families.save(family, tmp_path / "model")
    return tmp_path / "model"


class TestSleep:
    @pytest.mark.parametrize("level", [1, 2])
    def test_tokens_after_waking_are_those_before(self, folder, family, level):
        worker = started(folder)
        assert answers(worker) == worker_tools.generated(family)
        worker.sleep(level)
        assert worker.is_sleeping()
        worker.wake_up()
        assert not worker.is_sleeping()
        assert answers(worker) == worker_tools.generated(family)

    def test_the_log_says_what_waking_took_without_the_start(self, folder, caplog):
        caplog.set_level("INFO", "tenonry")
        worker = started(folder)
        worker.sleep(2)
        worker.wake_up()
        start, again = [line for line in caplog.messages if line.startswith("Loaded")]
        assert "look" in start
        assert "look" not in again
        assert "weights" in again

    def test_weights_first_and_then_the_cache(self, folder, family):
        worker = started(folder)
        worker.sleep(2)
        with pytest.raises(ConfigError, match="wake 'weights' up first"):
            worker.wake_up(["kv_cache"])
        worker.wake_up(["weights"])
        assert worker.is_sleeping()
        worker.wake_up(["kv_cache"])
        assert answers(worker) == worker_tools.generated(family)

    def test_other_levels_and_tags_are_refused(self, folder):
        worker = started(folder)
        with pytest.raises(ConfigError, match="sleep level 3"):
            worker.sleep(3)
        with pytest.raises(ConfigError, match="tag 'cache'"):
            worker.wake_up(["cache"])
        assert not worker.is_sleeping()


class TestUpdate:
    @pytest.mark.parametrize("fuse", [True, False])
    def test_all_weights(self, folder, family, tmp_path, fuse):
        worker = started(folder, fuse=fuse)
        model = changed(worker_families.build(family))
        model.save_pretrained(tmp_path / "new")
        worker.check_update(str(tmp_path / "new"))
        worker.update_weights(str(tmp_path / "new"))
        assert answers(worker) == wanted(model) != worker_tools.generated(family)

    def test_some_weights_one_after_the_other(self, folder, family, tmp_path):
        worker = started(folder)
        model = worker_families.build(family)
        for number, part in enumerate(("layers.1.", "q_proj")):
            changed(model, number, only=part)
            state = {name: weight for name, weight in model.state_dict().items() if part in name}
            save_file(state, tmp_path / f"{number}.safetensors")
            worker.update_weights(str(tmp_path / f"{number}.safetensors"))
            assert answers(worker) == wanted(model)


@pytest.mark.parametrize("family", ["llama-biased", "gpt_neox"], indirect=True)
def test_packed_layers_give_their_weights_back(folder, family, tmp_path):
    """Fused layers and the model's own, in bfloat16: as an engine that was started with the new weights."""
    worker = started(folder, dtype="bfloat16")
    first = answers(worker)
    model = worker_families.build(family).to(torch.bfloat16)
    held = plain_weights(worker.model)
    for name, weight in model.state_dict().items():
        assert torch.equal(held[name], weight), name
    name = next(
        name for name in model.state_dict() if name.endswith(("k_proj.weight", "dense.weight"))
    )
    new = {name: model.state_dict()[name].roll(1, 0).contiguous()}
    save_file(new, tmp_path / "some.safetensors")
    worker.update_weights(str(tmp_path / "some.safetensors"))
    model.load_state_dict(new, strict=False)
    model.save_pretrained(tmp_path / "new")
    made = answers(worker)
    assert made == answers(started(tmp_path / "new", dtype="bfloat16"))
    assert made != first
