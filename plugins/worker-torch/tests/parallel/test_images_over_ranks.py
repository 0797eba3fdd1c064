"""Prompts with images on several ranks: each has all of the towers and a piece of the text part (MM-1)."""

from __future__ import annotations

import pytest
import worker_images
import worker_tools
from parallel_tools import Ranks
from worker_driver import Driver, Request

from tenonry.errors import ConfigError
from tenonry_worker_torch.worker import TorchWorker

LENGTH = 8
WAYS = ({}, {"budget": 11, "depth": 2, "preempt_every": 5})


class Folder:
    """A family's folder, two prompts with pictures, and the answers of `generate`."""

    def __init__(self, path, family):
        self.path = path
        self.family = family
        worker_images.write_folder(path, family)
        self.model = worker_images.build(family)
        self.model.save_pretrained(path)
        pictures = [worker_images.picture(1, 84, 70), worker_images.picture(2, 60, 33)]
        inputs = worker_images.processed(path, pictures)
        self.prompts = [self._prompt(inputs), self._prompt(inputs[::-1])]
        self.wanted = [
            worker_images.generated(self.model, *prompt, LENGTH) for prompt in self.prompts
        ]

    def _prompt(self, inputs):
        counts = worker_images.count_of(self.model, inputs)
        return (*worker_images.prompt_of([[5, 6, 7], None, [8, 9], None, [12]], counts), inputs)

    def requests(self):
        return [
            Request(
                number,
                ids,
                max_tokens=LENGTH,
                media=worker_images.media_of(
                    spans, inputs, spans if self.family == "gemma3" else None
                ),
            )
            for number, (ids, spans, inputs) in enumerate(self.prompts, 1)
        ]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava", "gemma3"])
@pytest.mark.slow
@pytest.mark.nightly_after(1)
def test_tokens_of_two_ranks_equal_generate(family, tmp_path):
    folder = Folder(tmp_path, family)
    ranks = Ranks(tmp_path, tp=2, sees=True)
    for way in WAYS:
        requests = folder.requests()
        Driver(ranks.answer, max_num_seqs=6, num_blocks=96, block_size=4, **way).run(requests)
        assert [request.output for request in requests] == folder.wanted, way
    ranks.close()
    whole = {name: weight.shape for name, weight in folder.model.named_parameters()}
    for model in ranks.models:
        pieces = {name: weight.shape for name, weight in model.module.named_parameters()}
        cut = [name for name in pieces if pieces[name] != whole[name]]
        assert "lm_head.weight" in cut
        assert all("language_model" in name for name in cut if name != "lm_head.weight")


def test_pipeline_stages_are_refused(tmp_path):
    context = worker_tools.context(tmp_path, max_images=2, pipeline_parallel_size=2)
    with pytest.raises(ConfigError, match="max_images=2 does not go with pipeline_parallel"):
        TorchWorker(context).examine()
