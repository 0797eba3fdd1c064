"""Shows at start that a model sees rightly: a prompt with two images, computed in chunks, against the model's own pass
over the whole of it. Worker process.

It finds families that do more with an image than worker `torch` does.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tenonry.errors import ModelError
from tenonry_torch_base.attention.layer import INTERFACE_NAME
from tenonry_torch_base.text_part import set_attention
from tenonry_worker_torch.images.encoder import image_token
from tenonry_worker_torch.loading.prompts import numbered_tokens
from tenonry_worker_torch.loading.self_check import TOLERANCE, relative_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from tenonry_worker_torch.forward import Forward
    from tenonry_worker_torch.images.deepstack import Deepstack
    from tenonry_worker_torch.images.encoder import ImageEncoder
    from tenonry_worker_torch.images.request import Span
    from tenonry_worker_torch.loading.packed_run import PackedRun

SIZES = ((40, 56), (56, 40))  # height and width of the images, in pixels
TEXT_TOKENS = 5  # before, between and after them


class ImageCheck:
    """`prepare` before the model's layers are changed, then `require`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._logits: torch.Tensor | None = None  # [T, vocabulary], of the model's own pass
        self._given: torch.Tensor | None = None  # embeddings [T, H]
        self._deepstack: Deepstack | None = None
        self._added: torch.Tensor | None = None  # [layers, T, H], to the hidden states
        self._positions: NDArray[np.int64] | None = None
        self._whole: list[Span] = []  # images whose tokens see one another

    @torch.inference_mode()
    def prepare(self, encoder: ImageEncoder, model: PreTrainedModel, *, skip: bool) -> None:
        """Have the model's own code compute the prompt. Raises ModelError when it cannot see."""
        if skip:
            return
        try:
            self._prepare(encoder, model)
        except ModelError:
            raise
        except Exception as error:  # any class, since it is the model's code
            raise ModelError(
                f"max_images: {encoder.family} cannot be shown a picture: {type(error).__name__}: {error}; use "
                "max_images=0, or look at its preprocessor_config.json"
            ) from error

    def _prepare(self, encoder: ImageEncoder, model: PreTrainedModel) -> None:
        inputs = [
            {name: array for name, array in of_one.items() if encoder.takes(name)}
            for of_one in processed_images(self._path)
        ]
        made = [encoder.encode(of_one) for of_one in inputs]
        ids, spans = _prompt(model, made)
        given = encoder.embed(ids).clone()
        encoder.begin_step()
        for span, seen in zip(spans, made, strict=True):
            encoder.place(given, np.arange(*span), seen)
        self._given = given
        self._whole = spans if encoder.sees_spans else []
        self._deepstack = encoder.deepstack
        if self._deepstack is not None:
            self._added = self._deepstack.added
        encoder.begin_step()  # the model's own pass adds them itself
        host_ids = ids.cpu().numpy().astype(np.int32)
        self._positions = np.arange(len(ids))
        if encoder.has_rope_index:
            self._positions, _ = encoder.positions(host_ids, spans, inputs)
        self._logits = _own_logits(model, ids, spans, inputs)

    def require(
        self, own_forward: Forward, run: PackedRun, family: str, max_model_len: int
    ) -> None:
        """Raise ModelError naming the architecture when chunks of the prompt yield other logits than the whole.

        A prompt longer than `max_model_len` is compared up to that length: there are no positions after it.
        """
        if self._given is None or self._logits is None:
            return
        assert self._positions is not None  # noqa: S101 - made with them
        length = self._end_of_text(min(len(self._given), max_model_len))
        given = self._given[:length]
        cut = self._end_of_text(length // 2)
        counts = [cut, length - cut]
        positions = torch.from_numpy(self._positions).to(given.device)
        forward = _Placed(own_forward, positions, self._deepstack, self._added)
        (got,) = run.steps(
            forward, [given], [[count] for count in counts], last_seen=self._last_seen(length)
        )
        forward.end()
        wanted = self._logits[[cut - 1, length - 1]]
        error = float(relative_errors(torch.stack(got), wanted).max())
        tolerance = TOLERANCE[self._logits.dtype]
        if error > tolerance:
            raise ModelError(
                f"max_images: {family} fails the self check of worker 'torch' with images: a "
                f"prompt in chunks gives other logits than the model's own pass (relative error {error:.3g}, allowed "
                f"{tolerance:g}), so answers would be wrong; use max_images=0 to serve it for text"
            )
        self._given = self._logits = self._added = None

    def _end_of_text(self, length: int) -> int:
        """Return this number of tokens, or fewer, up to the image in which they would end."""
        for begin, stop in self._whole:
            if begin < length < stop:
                return begin
        return length

    def _last_seen(self, length: int) -> list[NDArray[np.int64]] | None:
        """Last visible position of each token of the prompt."""
        if not self._whole:
            return None
        found = np.arange(length)
        for begin, stop in self._whole:
            found[begin:stop] = stop - 1
        return [found]


class _Placed:
    """A forward pass over a prompt whose positions are known beforehand."""

    def __init__(
        self,
        forward: Any,
        positions: torch.Tensor,
        deepstack: Deepstack | None,
        added: torch.Tensor | None,
    ) -> None:
        self._forward = forward
        self._positions = positions
        self._deepstack = deepstack
        self._added = added
        self.can_prune = forward.can_prune

    def __call__(
        self, inputs: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor | None, plans: Any
    ) -> Any:
        if self._deepstack is not None and self._added is not None:
            self._deepstack.added = self._added[:, positions]
        return self._forward(inputs, self._positions[..., positions], keep, plans)

    def end(self) -> None:
        """Nothing is added any more."""
        if self._deepstack is not None:
            self._deepstack.added = None


def processed_images(path: str) -> list[dict[str, np.ndarray]]:
    """Output of the model's image processor for two pictures. Raises ModelError without Pillow."""
    # from its module: the top level of transformers 5.17 requires torchvision, which is not needed
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    try:
        from PIL import Image
    except ImportError as error:
        raise ModelError("max_images needs Pillow: pip install tenonry-images") from error
    processor = AutoImageProcessor.from_pretrained(
        path, local_files_only=True, trust_remote_code=False
    )
    found = []
    for height, width in SIZES:
        size = height * width * 3
        values = (np.arange(size) * 2654435761 >> 7).astype(np.uint8)
        picture = Image.fromarray(values.reshape(height, width, 3))
        made = processor(images=[picture], return_tensors="np")
        found.append({name: np.asarray(value) for name, value in made.items()})
    return found


def _prompt(model: PreTrainedModel, made: list[torch.Tensor]) -> tuple[torch.Tensor, list[Span]]:
    """Token ids i64[T] with places for the images, and where these are."""
    place = image_token(model)
    if place is None:
        raise ModelError(
            f"max_images: the config.json of {type(model).__name__} names no image_token_id; use max_images=0"
        )
    vocab_size = int(model.config.get_text_config().vocab_size)
    text = numbered_tokens(TEXT_TOKENS * (len(made) + 1), vocab_size, model.device)
    text = torch.where(text == place, (text + 1) % vocab_size, text)
    parts = []
    spans = []
    length = 0
    for number, embeddings in enumerate(made):
        parts.append(text[number * TEXT_TOKENS : (number + 1) * TEXT_TOKENS])
        parts.append(text.new_full((len(embeddings),), place))
        begin = length + TEXT_TOKENS
        length = begin + len(embeddings)
        spans.append((begin, length))
    parts.append(text[-TEXT_TOKENS:])
    return torch.cat(parts), spans


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    """Processed images, one after another; an image with fewer tiles is padded with zeros."""
    most = (
        np.max([array.shape[1:] for array in arrays], axis=0).tolist() if arrays[0].ndim > 1 else []
    )
    parts = []
    for array in arrays:
        missing = [largest - size for largest, size in zip(most, array.shape[1:], strict=True)]
        parts.append(np.pad(array, [(0, 0), *((0, count) for count in missing)]))
    return np.concatenate(parts)


def _own_logits(
    model: PreTrainedModel,
    ids: torch.Tensor,
    spans: list[Span],
    inputs: list[dict[str, np.ndarray]],
) -> torch.Tensor:
    """Logits [T, vocabulary] of the model's own pass with its `eager` attention."""
    given: dict[str, Any] = {}
    for name in inputs[0]:
        joined = _joined([of_one[name] for of_one in inputs])
        given[name] = torch.tensor(joined, device=ids.device)
    kinds = torch.zeros_like(ids)
    for begin, end in spans:
        kinds[begin:end] = 1
    accepted = inspect.signature(type(model).forward).parameters
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in accepted:
            given[name] = kinds[None]
    set_attention(model, "eager")
    try:
        made = model(
            input_ids=ids[None], attention_mask=torch.ones_like(ids)[None], use_cache=False, **given
        )
    finally:
        set_attention(model, INTERFACE_NAME)
    logits: torch.Tensor = made.logits[0]
    return logits
