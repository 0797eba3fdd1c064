"""The conformance suite of model passes."""

from __future__ import annotations

from tenonry_testkit.model_pass import ModelPassContract


class TestChunkedLayers(ModelPassContract):
    model_pass = "chunked_layers.plugin:ChunkedLayers"
