"""Names in `features` of a request with images, for libraries and workers. Front end, engine and worker processes.

`SPANS` i64[N, 2]: of each image, in order, the first prompt token that stands for it, and how many there are up
to the last one; others may be among them. `DIGESTS`
u8[N, 32]: of its content, as the model reads it; block digests cover those of the images that have begun. What the
model's towers are given of image i has the names `media_input(i, name)`.

`WHOLE` i64[M, 2], where tokens of an image see one another, also the later ones: in order, the first prompt token of
each such piece, and how many there are. No step ends in one.
"""

from __future__ import annotations

SPANS = "media.spans"
DIGESTS = "media.digests"
WHOLE = "media.whole"


def media_input(index: int, name: str) -> str:
    """The feature that holds the input `name` of the image at `index`."""
    return f"media.{index}.{name}"


def is_media(name: str) -> bool:
    """Whether a feature is one of these."""
    return name.startswith("media.")
