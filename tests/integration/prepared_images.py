"""An image processor that runs the work of `tenonry-images` in this process instead of a process of its own."""

from __future__ import annotations

import hashlib

import numpy as np

from tenonry_images.base import ImageProcessor, ProcessedImage
from tenonry_images.messages import unpacked
from tenonry_images.preparation import Preparation


class Prepared(ImageProcessor):
    def __init__(self, context):
        super().__init__(context)
        self.preparation = Preparation(context.path)
        self.token_id = self.preparation.token_id

    def process(self, data, param):
        made = self.preparation.make(data, self.context.limits.max_pixels)
        inputs = {name: unpacked(sent) for name, sent in made.inputs.items()}
        return ProcessedImage(
            np.array(made.token_ids, np.int32),
            made.first,
            made.count,
            inputs,
            hashlib.sha256(data).digest(),
            made.before,
            made.after,
            tuple(made.whole),
        )

    def reset(self):
        pass

    def shutdown(self):
        pass
