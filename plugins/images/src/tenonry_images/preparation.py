"""Makes an image file ready for a model with transformers' processors. Helper process."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tenonry_images.decoding import BadImage, decode
from tenonry_images.messages import Made, packed

TOKEN_NAMES = ("image_token_id", "image_token_index")
TRIAL_SIZE = (
    1280,
    640,
)  # width and height of a picture that processors cut into tiles, if they ever do
WITH_TORCHVISION = "; pip install torchvision"
TEXT_NAMES = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"})


class CannotPrepare(Exception):
    """A model for which no image can be made ready; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class Written:
    """Tokens that stand for a picture, and the model's inputs. `sees_itself`: the model receives the runs of image
    tokens, so that these attend to one another. The other fields are those of `ProcessedImage`.
    """

    token_ids: list[int]
    inputs: dict[str, np.ndarray]
    before: str = ""
    after: str = ""
    sees_itself: bool = False


class Preparation:
    """The processors of the model in a folder. Raises CannotPrepare."""

    def __init__(self, path: str) -> None:
        # from its module: the top level of transformers 5.17 requires torchvision, which is not needed
        from transformers.models.auto.image_processing_auto import AutoImageProcessor

        self._config = json.loads((Path(path) / "config.json").read_text("utf-8"))
        named = [
            self._config[name] for name in TOKEN_NAMES if isinstance(self._config.get(name), int)
        ]
        if not named:
            raise CannotPrepare(f"the config.json in {path} names no image_token_id")
        self._image_token: int = named[0]
        try:
            self._images: Any = AutoImageProcessor.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:
            raise CannotPrepare(
                f"the image processor in {path} cannot be built: {_short(error)}"
            ) from error
        self.token_id = self._image_token  # what a chat template writes for an image
        self._whole = None if self._counts_patches else _whole_processor(path)
        if self._whole is not None:
            self.token_id = _placeholder(self._whole, path)
            self._fixed = {self._image_token} | _special_tokens(self._whole.tokenizer)
            self._try(path)

    def _try(self, path: str) -> None:
        """Raises CannotPrepare where the processor does not write an image into a prompt."""
        from PIL import Image

        name = type(self._whole).__name__
        try:
            written = self._of_whole(Image.new("RGB", TRIAL_SIZE, (255, 128, 0)))
        except Exception as error:
            raise CannotPrepare(
                f"{name} in {path} does not take a picture: {_short(error)}"
            ) from error
        if _piece(written.token_ids, self._image_token) is None:
            raise CannotPrepare(
                f"{name} in {path} writes no token {self._image_token} for an image of {TRIAL_SIZE[0]} × "
                f"{TRIAL_SIZE[1]} pixels, and config.json says that it stands for one"
            )

    @property
    def _counts_patches(self) -> bool:
        """True if the processor reports an image's number of patches (Qwen-VL's kind): no text is needed to count."""
        return hasattr(self._images, "merge_size")

    def make(self, data: bytes | memoryview, max_pixels: int, max_edge: int = 0) -> Made:
        """An image file made ready; `max_edge`: see `decode`. Raises BadImage."""
        picture = decode(data, max_pixels, max_edge)
        written = self._of_patches(picture) if self._whole is None else self._of_whole(picture)
        piece = _piece(written.token_ids, self._image_token)
        if piece is None:
            raise BadImage("the model's processor writes no token for it")
        return Made(
            "",
            written.token_ids,
            *piece,
            {name: packed(array) for name, array in written.inputs.items()},
            written.before,
            written.after,
            _runs(written.token_ids, self._image_token) if written.sees_itself else [],
        )

    def _of_patches(self, picture: Any) -> Written:
        made = self._images(images=[picture], return_tensors="np")
        inputs = {str(name): np.asarray(value) for name, value in made.items()}
        count = int(inputs["image_grid_thw"].prod()) // self._images.merge_size**2
        return Written([self._image_token] * count, inputs)

    def _of_whole(self, picture: Any) -> Written:
        """One call makes tokens and inputs: a processor has settings of its own for the images of a prompt."""
        processor: Any = self._whole
        made = processor(
            text=[processor.image_token],
            images=[picture],
            add_special_tokens=False,
            return_tensors="np",
        )
        inputs = {
            str(name): np.asarray(value) for name, value in made.items() if name not in TEXT_NAMES
        }
        token_ids = np.asarray(made["input_ids"]).reshape(-1)
        kinds = np.asarray(made.get("token_type_ids", 0))
        is_image = token_ids == self._image_token
        sees_itself = bool(kinds.any() and kinds.reshape(-1)[is_image].all())
        return self._apart(Written(token_ids.tolist(), inputs, sees_itself=sees_itself))

    def _apart(self, written: Written) -> Written:
        """The same without texts at its ends, whose tokens may be others where they stand beside other text: those of
        Gemma 3 begin and end with line breaks, and it has a token for each number of these.
        """
        tokenizer: Any = self._whole.tokenizer
        ids = written.token_ids
        fixed = [place for place, token in enumerate(ids) if token in self._fixed]
        if not fixed:
            return written
        begin = fixed[0]
        end = fixed[-1] + 1
        before = tokenizer.decode(ids[:begin])
        after = tokenizer.decode(ids[end:])
        for text, tokens in ((before, ids[:begin]), (after, ids[end:])):
            if tokenizer(text, add_special_tokens=False)["input_ids"] != tokens:
                return written
        return dataclasses.replace(written, token_ids=ids[begin:end], before=before, after=after)


def _special_tokens(tokenizer: Any) -> set[int]:
    """Tokens that are never joined with the text around them."""
    return {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}


def _placeholder(processor: Any, path: str) -> int:
    """The token that stands for an image before a processor writes others in its place."""
    text = processor.image_token
    tokens = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(tokens) != 1:
        raise CannotPrepare(
            f"{type(processor).__name__} in {path} looks for {text!r}, which is no token of its tokenizer"
        )
    return int(tokens[0])


def _piece(token_ids: list[int], token_id: int) -> tuple[int, int] | None:
    """The first place of `token_id`, and how many tokens there are from it up to the last one; None without any.

    There may be others between them: between the tiles of an image, or its rows.
    """
    places = np.flatnonzero(np.array(token_ids) == token_id)
    if not len(places):
        return None
    return int(places[0]), int(places[-1] - places[0]) + 1


def _runs(token_ids: list[int], token_id: int) -> list[tuple[int, int]]:
    """Runs of adjacent places of the token: the first place of each run, and its length."""
    places = np.flatnonzero(np.array(token_ids) == token_id)
    runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    return [(int(run[0]), len(run)) for run in runs]


def _whole_processor(path: str) -> Any:
    from transformers import AutoProcessor

    try:
        found = AutoProcessor.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise CannotPrepare(f"the processor in {path} cannot be built: {_short(error)}") from error
    if not isinstance(getattr(found, "image_token", None), str):
        raise CannotPrepare(f"{type(found).__name__} in {path} has no image_token")
    return found


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    remedy = WITH_TORCHVISION if "torchvision" in text.lower() else ""
    return f"{type(error).__name__}: {text[:300]}{remedy}"
