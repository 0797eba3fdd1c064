"""Images in chats: made ready while the chat is rendered, put in place when the prompt is tokenised. Front end.

Everything about a kind of model is in the image processor, a plugin of the point `tenonry.image_processors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry.errors import RequestError
from tenonry.plugin.manager import resolve_point
from tenonry_images.base import ImageContext, ImageLimits, ProcessedImage
from tenonry_images.points import IMAGE_PROCESSORS
from tenonry_images.prompt import with_images, with_surroundings
from tenonry_images.sources import ImageSources
from tenonry_io_text.content import ChatImage, ChatImages

if TYPE_CHECKING:
    from tenonry.step import I32, Media
    from tenonry_helper_pool.turns import Report
    from tenonry_images.base import ImageProcessor
    from tenonry_io_text.codec import Codec


class PromptImages:
    """The images of prompts, `most` of them in one. `hosts`: those that https addresses may name. `max_piece`: tokens
    that a step has room for, where those of an image see one another.
    """

    def __init__(
        self,
        path: str,
        *,
        processor: str,
        limits: ImageLimits,
        hosts: tuple[str, ...],
        most: int,
        max_piece: int,
        report: Report | None = None,
    ) -> None:
        """Raises PluginError without the processor, and ModelError for a model that it cannot serve."""
        found, _ = resolve_point(IMAGE_PROCESSORS, processor)
        self._processor: ImageProcessor = found(ImageContext(path, limits, report))
        self._sources = ImageSources(hosts, limits.max_bytes)
        self._most = most
        self._max_piece = max_piece

    def of_chat(self, codec: Codec) -> ChatImages:
        """Takes up the images of one chat."""
        return ChatImages(self._most, codec.token_text(self._processor.token_id))

    def read(self, images: ChatImages) -> list[ProcessedImage]:
        """Read and prepare the images of a chat. May take seconds. Raises RequestError that names the part."""
        return [self._image(each) for each in images.found]

    def _image(self, image: ChatImage) -> ProcessedImage:
        data = self._sources.read(image.url, image.where)
        if image.detail == "low":
            return self._processor.process_reduced(data, image.where)
        return self._processor.process(data, image.where)

    def surrounded(self, codec: Codec, text: str, images: list[ProcessedImage]) -> str:
        """Text of a prompt with the text around its images, which is tokenised with it."""
        if not any(image.before or image.after for image in images):
            return text
        return with_surroundings(text, images, codec.token_text(self._processor.token_id))

    def put(
        self, token_ids: I32, images: list[ProcessedImage], *, is_cut: bool
    ) -> tuple[I32, Media]:
        """The prompt with its images, and the media of the request. Raises RequestError."""
        if is_cut:
            raise RequestError(
                "truncate_prompt_tokens: a prompt with images cannot be cut; leave it out, or shorten the chat",
                "truncate_prompt_tokens",
            )
        for image in images:
            self._check_pieces(image)
        return with_images(token_ids, images, self._processor)

    def _check_pieces(self, image: ProcessedImage) -> None:
        largest = max((count for _, count in image.whole), default=0)
        if largest > self._max_piece:
            raise RequestError(
                f"an image has {largest} tokens, which see one another and are computed in one step, and a step has "
                f"room for {self._max_piece} beside requests that decode; the operator can raise "
                f"--max-num-batched-tokens by {largest - self._max_piece}, or lower --max-num-seqs",
                "messages",
            )

    def reset(self) -> None:
        """Forget images that were made ready."""
        self._processor.reset()

    def shutdown(self) -> None:
        """Stop the image decoders."""
        self._processor.shutdown()
