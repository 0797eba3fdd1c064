"""Vision encoder of a model: from an image processor's output for one image to embeddings; and the positions of a
prompt with images. Worker process.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tenonry.errors import ModelError
from tenonry_worker_torch.images.cache import CACHED_TOKENS, EncodedImages
from tenonry_worker_torch.images.deepstack import Deepstack
from tenonry_worker_torch.loading.deep_layers import deep_layers
from tenonry_worker_torch.loading.image_mask import sees_spans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from tenonry_worker_torch.images.request import Span

IMAGE = 1  # in `mm_token_type_ids`
TOKEN_NAMES = ("image_token_id", "image_token_index")


class ImageEncoder:
    """Calls the model's own `get_image_features`, and `get_rope_index` if it has one.

    `sees_spans`: the tokens of an image see one another, the later ones, too. `encoded`: cache of embeddings.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Raise ModelError for a model that cannot encode an image separately from its prompt."""
        family = type(model).__name__
        if not hasattr(model, "get_image_features"):
            raise ModelError(
                f"{family} has no `get_image_features`, so worker 'torch' cannot show it images; use max_images=0"
            )
        self._model = model
        self.family = family
        self.token_id = image_token(model)
        self.sees_spans = sees_spans(model)
        self._takes = frozenset(inspect.signature(type(model).forward).parameters)
        self._rope_index: Any = getattr(model.base_model, "get_rope_index", None)
        layers = deep_layers(model)
        self.deepstack = Deepstack(layers) if layers else None
        self.encoded = EncodedImages(CACHED_TOKENS)

    @property
    def has_rope_index(self) -> bool:
        """True if tokens of an image have positions of several dimensions (M-RoPE)."""
        return self._rope_index is not None

    @property
    def needs_own_layers(self) -> bool:
        """True if fused layers cannot replace the model's own: their rotary tables are of one dimension."""
        return self.has_rope_index or self.deepstack is not None

    def takes(self, name: str) -> bool:
        """Return True if the model reads the image processor's output of this name."""
        return name in self._takes

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Token ids i64[T] → embeddings [T, H]."""
        found: torch.Tensor = self._model.get_input_embeddings()(token_ids)
        return found

    def encode(self, inputs: Mapping[str, np.ndarray]) -> torch.Tensor:
        """Encode one image → embeddings [n, H], or [n, 1 + layers, H] if it is added to several layers.

        Raises any error of the model's code for wrong inputs.
        """
        device = self._model.device
        given = {
            name: torch.tensor(array, device=device)
            for name, array in inputs.items()
            if name in self._takes
        }
        made: Any = self._model.get_image_features(**given, return_dict=True)
        seen = _joined(getattr(made, "pooler_output", made))
        deep = getattr(made, "deepstack_features", None)
        if (deep is None) != (self.deepstack is None):
            raise ModelError(
                f"{self.family} feeds images to several of its layers in a way that worker 'torch' does not know; use "
                "max_images=0"
            )
        if deep is not None:
            seen = torch.stack([seen, *map(_joined, deep)], 1)
        return seen.to(self._model.dtype)

    def place(
        self, embeddings: torch.Tensor, tokens: NDArray[np.int64], seen: torch.Tensor
    ) -> None:
        """Write a part of the result of `encode` into a step's embeddings [T, H], for the tokens `tokens` i64[n]."""
        where = torch.from_numpy(tokens).to(embeddings.device)
        if self.deepstack is not None:
            seen = self.deepstack.take(seen, where, len(embeddings))
        embeddings[where] = seen

    def begin_step(self) -> None:
        """Nothing of an image is in the step yet."""
        if self.deepstack is not None:
            self.deepstack.added = None

    def positions(
        self,
        token_ids: NDArray[np.int32],
        spans: Sequence[Span],
        inputs: Sequence[Mapping[str, np.ndarray]],
    ) -> tuple[NDArray[np.int64], int]:
        """Positions i64[3, P] of a prompt i32[P], and the offset between index and position of later tokens."""
        kinds = np.zeros(len(token_ids), np.int32)
        for begin, end in spans:
            kinds[begin:end] = IMAGE
        given: dict[str, Any] = {"mm_token_type_ids": torch.from_numpy(kinds)[None]}
        for name in inputs[0]:
            given[name] = torch.from_numpy(np.concatenate([of_one[name] for of_one in inputs]))
        accepted = inspect.signature(self._rope_index).parameters
        wanted = {name: value for name, value in given.items() if name in accepted}
        ids = torch.from_numpy(token_ids.astype(np.int64))[None]
        positions, shift = self._rope_index(ids, **wanted)
        return positions[:, 0].numpy(), int(shift.reshape(-1)[0])


def image_token(model: PreTrainedModel) -> int | None:
    """Placeholder token of an image embedding, as named in config.json."""
    found = (getattr(model.config, name, None) for name in TOKEN_NAMES)
    return next((value for value in found if isinstance(value, int)), None)


def _joined(parts: Any) -> torch.Tensor:
    """The embeddings [n, H] of the pieces of an image, one after another."""
    if isinstance(parts, torch.Tensor):
        parts = [parts]
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
