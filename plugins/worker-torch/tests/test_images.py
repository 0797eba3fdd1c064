"""Prompts with images: greedy tokens equal the model's own `generate`, in float32, however prompts are cut (MM-1)."""

from __future__ import annotations

import functools

import msgspec
import pytest
import torch
import worker_images
import worker_tools
from worker_driver import Driver, Request
from worker_images import PLACE

from tenonry.errors import ConfigError, ModelError
from tenonry.step import Media, RowFailure
from tenonry_torch_base.buffers import HostBuffers
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.images.cache import EncodedImages
from tenonry_worker_torch.images.request import RequestImages

pytestmark = pytest.mark.slow  # whole models

SERVED = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "llava", "gemma3"]
WAYS = {
    "one big batch": {},
    "images cut into chunks": {"budget": 5},
    "preempted, two steps in flight": {"budget": 11, "depth": 2, "preempt_every": 5},
}
TEXT = [5, 6, 7, 8]
LENGTH = 10


class Seen:
    """A family: its folder and model, two prompts with the same pictures in either order, and `generate`'s answers."""

    def __init__(self, folder, family):
        self.folder = folder
        self.family = family
        self.check = worker_images.write_folder(folder, family)
        self.model = worker_images.build(family)
        self.model.config.save_pretrained(folder)
        self.module = worker_images.build(family)
        pictures = [worker_images.picture(1, 84, 70), worker_images.picture(2, 60, 33)]
        if family == "mistral3":  # `generate` is given pictures of one size
            pictures = [worker_images.picture(number, 56, 56) for number in (1, 2)]
        inputs = worker_images.processed(folder, pictures)
        self.prompts = [self._prompt(inputs), self._prompt(inputs[::-1])]
        self.wanted = [
            worker_images.generated(self.model, *prompt, LENGTH) for prompt in self.prompts
        ]

    def _prompt(self, inputs):
        counts = worker_images.count_of(self.model, inputs)
        return (*worker_images.prompt_of([[5, 6, 7], None, [8, 9], None, [12]], counts), inputs)

    def whole(self, pieces):
        """Pieces that no step may split, for a family whose image tokens see one another."""
        return pieces if self.family == "gemma3" else None

    def requests(self):
        return [
            Request(
                number,
                ids,
                max_tokens=LENGTH,
                media=worker_images.media_of(spans, inputs, self.whole(spans)),
            )
            for number, (ids, spans, inputs) in enumerate(self.prompts, 1)
        ]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return functools.cache(lambda family: Seen(tmp_path_factory.mktemp(family), family))


@pytest.fixture(scope="module")
def loaded(seen):
    @functools.cache
    def model_of(family):
        return build(
            seen(family).module,
            BuildPlan(
                worker_tools.BACKENDS["cpu"],
                HostBuffers(torch.device("cpu"), 1),
                max_model_len=64,
                fuse=True,
                skip_check=False,
                image_check=seen(family).check,
            ),
        )

    return model_of


def run(runner, requests, **way):
    Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4, **way).run(requests)
    return [request.output for request in requests]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", SERVED)
@pytest.mark.slow
def test_tokens_equal_generate(seen, loaded, family, way):
    """Two prompts with the same pictures in either order, and one of text between them."""
    first, second = seen(family).requests()
    text = Request(9, TEXT, max_tokens=LENGTH)
    found = run(worker_tools.runner(loaded(family)), [first, text, second], **WAYS[way])
    plain = worker_tools.greedy(seen(family).model, TEXT)[:LENGTH]
    assert found == [seen(family).wanted[0], plain, seen(family).wanted[1]]
    assert found[0] != found[2]


@pytest.mark.parametrize("family", ["llava", "mistral3", "gemma3"])
def test_other_tokens_may_stand_between_those_of_an_image(seen, loaded, family):
    """As between the rows of Mistral 3, and the tiles of Idefics 3; in one batch and in chunks that end anywhere."""
    case = seen(family)
    pictures = [worker_images.picture(number, 56, 56) for number in (1, 2)]
    inputs = worker_images.processed(case.folder, pictures)
    counts = worker_images.count_of(case.model, inputs)
    assert min(counts) >= 4
    ids, spans = worker_images.prompt_of([[5, 6, 7], None, [8], None, [9]], counts, between=13)
    assert ids.count(13) >= 2
    wanted = worker_images.generated(case.model, ids, spans, inputs, LENGTH)
    runs = [(place, 2) for place in range(len(ids)) if ids[place : place + 2] == [PLACE, PLACE]]
    for way in WAYS.values():
        media = worker_images.media_of(spans, inputs, case.whole(runs))
        request = Request(1, ids, max_tokens=LENGTH, media=media)
        assert run(worker_tools.runner(loaded(family)), [request], **way) == [wanted]


def test_a_picture_is_encoded_once_for_all_prompts(seen, loaded, monkeypatch):
    runner = worker_tools.runner(loaded("llava"))
    calls = []
    runner.model.images.encoded.clear()
    encode = runner.model.images.encode
    monkeypatch.setattr(
        runner.model.images, "encode", lambda inputs: calls.append(1) or encode(inputs)
    )
    assert run(runner, seen("llava").requests()) == seen("llava").wanted
    assert len(calls) == 2
    runner.model.images.encoded.clear()
    assert run(runner, seen("llava").requests()) == seen("llava").wanted
    assert len(calls) == 4


@pytest.mark.parametrize("spoilt", ["another size", "too few digests", "too few tokens"])
def test_images_that_do_not_fit_fail_their_request_alone(seen, loaded, spoilt):
    good, bad = seen("llava").requests()
    if spoilt == "another size":
        first, *others = bad.media.inputs
        cut = first | {"pixel_values": first["pixel_values"][..., :13]}
        changes = {"inputs": [cut, *others], "digests": bad.media.digests ^ 1}
    elif spoilt == "too few digests":
        changes = {"digests": bad.media.digests[1:]}
    else:
        changes = {"spans": bad.media.spans - [0, 1]}
    bad.media = msgspec.structs.replace(bad.media, **changes)
    run(worker_tools.runner(loaded("llava")), [good, bad])
    assert good.output == seen("llava").wanted[0]
    assert bad.failure == RowFailure.MEDIA


def test_a_family_that_does_more_with_images_than_is_known_fails_the_self_check(seen, monkeypatch):
    monkeypatch.setattr("tenonry_worker_torch.images.encoder.sees_spans", lambda _: False)
    with pytest.raises(ModelError, match=r"Gemma3.* self check .* with images.*max_images=0"):
        build(
            worker_images.build("gemma3"),
            BuildPlan(
                worker_tools.BACKENDS["cpu"],
                HostBuffers(torch.device("cpu"), 1),
                max_model_len=64,
                fuse=True,
                skip_check=False,
                image_check=seen("gemma3").check,
            ),
        )


def test_steps_never_end_among_tokens_that_see_one_another(seen, loaded):
    """Media that allow it fail their request; a step that does it although they forbid it ends the engine."""
    good, bad = seen("gemma3").requests()
    bad.media = msgspec.structs.replace(bad.media, whole=bad.media.whole[:0])
    bad.whole = []
    run(worker_tools.runner(loaded("gemma3")), [good, bad])
    assert good.output == seen("gemma3").wanted[0]
    assert bad.failure == RowFailure.MEDIA
    cut, _ = seen("gemma3").requests()
    cut.whole = []
    with pytest.raises(RuntimeError, match=r"3 to 7 are of one image, which `Media.whole`"):
        run(worker_tools.runner(loaded("gemma3")), [cut], budget=5)


def test_a_backend_that_shows_no_later_keys_is_refused(seen):
    class Older(worker_tools.BACKENDS["cpu"]):
        name = "older"
        features = frozenset({"chunk", "sinks", "indexed", "groups"})

    with pytest.raises(ConfigError, match=r"older.*Gemma3.*queries that see later keys"):
        build(
            worker_images.build("gemma3"),
            BuildPlan(
                Older,
                HostBuffers(torch.device("cpu"), 1),
                max_model_len=64,
                fuse=True,
                skip_check=True,
                image_check=seen("gemma3").check,
            ),
        )


def test_a_family_that_adds_images_to_layers_in_an_unknown_way_is_refused_by_name(tmp_path):
    check = worker_images.write_folder(tmp_path, "qwen3_vl")
    model = worker_images.build("qwen3_vl")
    model.config.save_pretrained(tmp_path)
    model.config.vision_config.deepstack_visual_indexes = []
    with pytest.raises(ModelError, match=r"Qwen3VL.*several of its layers.*max_images=0"):
        build(
            model,
            BuildPlan(
                worker_tools.BACKENDS["cpu"],
                HostBuffers(torch.device("cpu"), 1),
                max_model_len=64,
                fuse=True,
                skip_check=False,
                image_check=check,
            ),
        )


def test_the_images_of_a_chunk_are_those_that_have_a_token_in_it():
    spans = torch.tensor([[2, 3], [5, 1]]).numpy()
    images = RequestImages(Media(spans, torch.zeros(2, 32).byte().numpy(), [{}, {}]))
    assert [images.overlapping(*chunk) for chunk in [(0, 2), (2, 3), (4, 6), (6, 9)]] == [
        [],
        [0],
        [0, 1],
        [],
    ]


def test_the_cache_forgets_the_image_that_was_used_longest_ago():
    cache = EncodedImages(10)
    for name in (b"a", b"b"):
        cache.put(name, torch.zeros(4, 2))
    cache.get(b"a")
    cache.put(b"c", torch.zeros(4, 2))
    cache.put(b"huge", torch.zeros(11, 2))
    assert [cache.get(name) is not None for name in (b"a", b"b", b"c", b"huge")] == [
        True,
        False,
        True,
        False,
    ]
