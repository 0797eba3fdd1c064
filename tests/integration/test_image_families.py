"""Families that show an image in other ways than as a row of embeddings, through the engine: in tiles, or added to
several layers. Tokens equal `generate` in chunks, with a shared beginning, with several completions, and when rows come
back after a preemption to a worker that forgot their images.
"""

from __future__ import annotations

import io
import re
from importlib.util import find_spec

import numpy as np
import pytest
import vision_models
from prepared_images import Prepared
from transformers import AutoProcessor, AutoTokenizer, InternVLProcessor
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from tenonry import LLM, SamplingParams
from tenonry.errors import RequestError
from tenonry.messages import EngineCoreRequest
from tenonry_images.base import ImageContext, ImageLimits
from tenonry_images.preparation import CannotPrepare, Preparation
from tenonry_images.prompt import with_images, with_surroundings
from tenonry_testkit.tiers import nightly_unless

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("one_thread")]
LENGTH = 24
PARAMS = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True, detokenize=False)
# Pictures that a processor cuts into different numbers of tiles.
WIDE, HIGH, SQUARE = (
    vision_models.picture(1, 24, 60),
    vision_models.picture(2, 60, 16),
    vision_models.picture(3, 16, 16),
)
CHATS = {
    "two": ("what is in", WIDE, "and", HIGH, "?"),
    "the same beginning": ("what is in", WIDE, "and", SQUARE, "?"),
    "swapped": ("what is in", HIGH, "and", WIDE, "?"),
    "one": (SQUARE, "describe a cat"),
}
SETTINGS = {
    "worker": "torch", "executor": "uni", "dtype": "float32", "device": "cpu", "max_num_seqs": 4,
    "max_model_len": 136, "block_size": 4, "skip_tokenizer_init": True, "log_stats": False, "max_images": 2,
}  # fmt: skip


class Family:
    """A small model with its folder, and of each chat the request's prompt and the answer of `generate`."""

    def __init__(self, name, folder):
        self.folder = folder
        model = vision_models.write(folder, name)
        expected = vision_models.expected
        if (folder / "processor_config.json").exists():
            expected = vision_models.expected_of_processor
        self.wanted = {
            chat: expected(folder, model, parts, LENGTH) for chat, parts in CHATS.items()
        }
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.processor = Prepared(ImageContext(str(folder), ImageLimits()))
        # A prompt is never split in an image whose tokens see one another; other rows may decode in the same step.
        self.least_budget = 24 if name == "gemma3" else 1

    def request(self, chat):
        parts = CHATS[chat]
        images = [
            self.processor.process(png(part), "") for part in parts if not isinstance(part, str)
        ]
        text = vision_models.text_of(self.tokenizer, parts)
        mark = self.tokenizer.decode([self.processor.token_id])
        text = with_surroundings(text, images, mark)
        plain = np.array(self.tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)
        ids, media = with_images(plain, images, self.processor)
        assert ids.tolist() == self.wanted[chat][0]
        return EngineCoreRequest(
            handle=0, request_id="", prompt_token_ids=ids, sampling_params=PARAMS, media=media
        )

    def engine(self, **settings):
        return LLM(model=str(self.folder), **(SETTINGS | settings))

    def serve(self, llm, chats):
        """Outputs of one batch, whose tokens are those of `generate`."""
        outputs = llm.generate([self.request(chat) for chat in chats], PARAMS, use_tqdm=False)
        for chat, output in zip(chats, outputs, strict=True):
            assert list(output.outputs[0].token_ids) == self.wanted[chat][1], chat
        return outputs


def png(picture):
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


class WithoutVideo(InternVLProcessor):
    """InternVL's processor where torchvision, which its part for video needs, may be missing."""

    def check_argument_for_proper_class(self, name, given):
        return (
            None
            if name == "video_processor"
            else super().check_argument_for_proper_class(name, given)
        )

    @classmethod
    def of(cls, path, **_):
        images = AutoImageProcessor.from_pretrained(path)
        return cls(images, AutoTokenizer.from_pretrained(path), object(), image_seq_length=4)


@pytest.fixture(
    scope="module",
    params=nightly_unless(
        lambda name: name in {"llava_next", "qwen3_vl"},
        ["llava_next", "internvl", "qwen3_vl", "idefics3", "gemma3"],
    ),
)
def family(request, tmp_path_factory):
    vision_models.skip_without_torchvision(request.param)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "internvl":
            patch.setattr(AutoProcessor, "from_pretrained", WithoutVideo.of)
        yield Family(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="its processor can be built")
def test_internvl_without_torchvision_is_refused(tmp_path):
    vision_models.write(tmp_path, "internvl")
    with pytest.raises(CannotPrepare, match="requires `torchvision`"):
        Preparation(str(tmp_path))


def test_the_pictures_have_different_numbers_of_tiles(family):
    if family.least_budget > 1:
        return  # Gemma 3 makes as many tokens of each
    counts = {family.processor.process(png(each), "").count for each in (WIDE, HIGH, SQUARE)}
    assert len(counts) > 1


@pytest.mark.parametrize("budget", nightly_unless(lambda budget: budget == 7, [512, 7]))
@pytest.mark.nightly_after(1)
def test_tokens_equal_generate_however_prompts_are_cut(family, budget):
    with family.engine(max_num_batched_tokens=max(budget, family.least_budget)) as llm:
        family.serve(llm, CHATS)


def test_an_image_that_no_step_has_room_for_is_refused_with_the_setting(family):
    """If steps may not split it; up to three other rows may decode in the same step."""
    if family.least_budget == 1:
        return
    reason = (
        r"16 tokens, which see one another.* room for 15 .* raise --max-num-batched-tokens by 1"
    )
    reader = {
        "skip_tokenizer_init": False,
        "io_processor": {
            "name": "text",
            "options": {"image_processor": "prepared_images:Prepared"},
        },
    }
    with family.engine(max_num_batched_tokens=18, **reader) as llm:
        with pytest.raises(RequestError, match=reason):  # at the door
            llm.chat(vision_models.chat(SQUARE, "describe"), PARAMS)
        (output,) = llm.generate([family.request("one")], PARAMS, use_tqdm=False)  # past it
    assert re.search(reason, output.error)


@pytest.mark.nightly_after(1)
def test_a_beginning_is_shared_as_far_as_its_images_are_the_same(family):
    with family.engine() as llm:
        cached = [family.serve(llm, [chat])[0].num_cached_tokens for chat in CHATS]
        again = family.serve(llm, CHATS)
    alike = [len(family.wanted[chat][0]) for chat in CHATS]
    prompt = family.wanted["two"][0]
    other = prompt.index(40, prompt.index(6))  # where the second picture begins
    assert cached[0] == cached[3] == 0
    assert cached[2] == prompt.index(40) // 4 * 4  # words before the first picture
    assert other - 4 < cached[1] <= other
    assert all(
        output.num_cached_tokens >= length - 8 for output, length in zip(again, alike, strict=True)
    )


@pytest.mark.nightly_after(1)
def test_completions_of_one_request_share_its_images(family):
    two = SamplingParams(n=2, temperature=0.0, max_tokens=LENGTH, ignore_eos=True, detokenize=False)
    with family.engine() as llm:
        outputs = llm.generate([family.request(chat) for chat in CHATS], two, use_tqdm=False)
    for chat, output in zip(CHATS, outputs, strict=True):
        assert [list(each.token_ids) for each in output.outputs] == [family.wanted[chat][1]] * 2


@pytest.mark.parametrize(
    "forgets",
    nightly_unless(lambda forgets: forgets, [False, True]),
    ids=["kept", "forgotten by the worker"],
)
@pytest.mark.nightly_after(1)
def test_rows_that_come_back_have_their_images_again(family, forgets, monkeypatch):
    if forgets:
        monkeypatch.setattr("tenonry_worker_torch.images.encoder.CACHED_TOKENS", 0)
    enough_to_start = sum(len(prompt) for prompt, _ in family.wanted.values()) // 4
    if family.least_budget > 1:  # its layers with a window give blocks back
        enough_to_start -= 4
    settings = {"num_gpu_blocks_override": enough_to_start, "max_num_batched_tokens": 24}
    longest = max(len(prompt) for prompt, _ in family.wanted.values()) + LENGTH
    with family.engine(**settings, max_model_len=longest) as llm:
        for chats in (list(CHATS), list(CHATS)[::-1]):
            outputs = family.serve(llm, chats)
            assert sum(output.metrics.num_preemptions for output in outputs) > 0
