"""Makes an image file ready for a model with transformers' processors. In the process that decodes."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tenonry_io_images.messages import Made, packed

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
TOKEN_NAMES = ("image_token_id", "image_token_index")
MAX_RATIO = 200  # of the longer edge to the shorter one
TRIAL_SIZE = (
    1280,
    640,
)  # width and height of a picture that processors cut into tiles, if they ever do
WITH_TORCHVISION = "; pip install torchvision"
TEXT_NAMES = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"})


class BadImage(Exception):
    """An image that cannot be read; the text is for the client."""


class CannotPrepare(Exception):
    """A model for which no image can be made ready; the text is for the operator."""


def decode(data: bytes, max_pixels: int) -> Any:
    """An image file as a picture in RGB, turned as its EXIF data say. Raises BadImage.

    The size is looked at before a pixel is decoded; of a file with several pictures the first is read.
    """
    from PIL import Image, ImageOps

    Image.MAX_IMAGE_PIXELS = None  # bounded here, by the setting
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            picture = Image.open(io.BytesIO(data), formats=FORMATS)
        except Exception:  # noqa: BLE001 - any class, and texts that may hold addresses
            raise BadImage(f"it is none of {', '.join(FORMATS)}") from None
        width, height = picture.size
        if width * height > max_pixels:
            raise BadImage(f"it has {width} × {height} pixels; at most {max_pixels} are allowed")
        if max(width, height) > MAX_RATIO * min(width, height):
            raise BadImage(
                f"it has {width} × {height} pixels; one edge may be {MAX_RATIO} times the other"
            )
        try:
            return ImageOps.exif_transpose(picture).convert("RGB")
        except Exception:  # noqa: BLE001 - as above
            raise BadImage(f"its {picture.format} data are damaged") from None


class Preparation:
    """The processors of the model in a folder. Raises CannotPrepare."""

    def __init__(self, path: str) -> None:
        # from where it is: at the top of transformers 5.17 it wants torchvision, which it does not need
        from transformers.models.auto.image_processing_auto import AutoImageProcessor

        self._config = json.loads((Path(path) / "config.json").read_text("utf-8"))
        named = [
            self._config[name] for name in TOKEN_NAMES if isinstance(self._config.get(name), int)
        ]
        if not named:
            raise CannotPrepare(f"the config.json in {path} names no image_token_id")
        self.token_id: int = named[0]
        try:
            self._images: Any = AutoImageProcessor.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:
            raise CannotPrepare(
                f"the image processor in {path} cannot be built: {_short(error)}"
            ) from error
        self._whole = None if self._counts_patches else _whole_processor(path)
        if self._whole is not None:
            self._try(path)

    def _try(self, path: str) -> None:
        """Raises CannotPrepare where the processor does not write an image into a prompt."""
        from PIL import Image

        name = type(self._whole).__name__
        try:
            token_ids, _ = self._of_whole(Image.new("RGB", TRIAL_SIZE, (255, 128, 0)))
        except Exception as error:
            raise CannotPrepare(
                f"{name} in {path} does not take a picture: {_short(error)}"
            ) from error
        if _piece(token_ids, self.token_id) is None:
            raise CannotPrepare(
                f"{name} in {path} writes no token {self.token_id} for an image of {TRIAL_SIZE[0]} × "
                f"{TRIAL_SIZE[1]} pixels, and config.json says that it stands for one"
            )

    @property
    def _counts_patches(self) -> bool:
        """Whether the processor says how many patches an image has (Qwen-VL's kind): no text is needed to count."""
        return hasattr(self._images, "merge_size")

    def make(self, data: bytes, max_pixels: int) -> Made:
        """An image file made ready. Raises BadImage."""
        picture = decode(data, max_pixels)
        if self._whole is None:
            token_ids, inputs = self._of_patches(picture)
        else:
            token_ids, inputs = self._of_whole(picture)
        piece = _piece(token_ids, self.token_id)
        if piece is None:
            raise BadImage("the model's processor writes no token for it")
        sent = {name: packed(array) for name, array in inputs.items()}
        return Made("", token_ids, *piece, sent)

    def _of_patches(self, picture: Any) -> tuple[list[int], dict[str, np.ndarray]]:
        """The tokens that stand for a picture, and what the model reads of it."""
        made = self._images(images=[picture], return_tensors="np")
        inputs = {str(name): np.asarray(value) for name, value in made.items()}
        count = int(inputs["image_grid_thw"].prod()) // self._images.merge_size**2
        return [self.token_id] * count, inputs

    def _of_whole(self, picture: Any) -> tuple[list[int], dict[str, np.ndarray]]:
        """As `_of_patches`. One call makes both: a processor has settings of its own for the images of a prompt."""
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
        return np.asarray(made["input_ids"]).reshape(-1).tolist(), inputs


def _piece(token_ids: list[int], token_id: int) -> tuple[int, int] | None:
    """The first place of `token_id`, and how many tokens there are from it up to the last one; None without any.

    There may be others between them: between the tiles of an image, or its rows.
    """
    places = np.flatnonzero(np.array(token_ids) == token_id)
    if not len(places):
        return None
    return int(places[0]), int(places[-1] - places[0]) + 1


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
