"""The conformance suite of request codecs over the mirror."""

from __future__ import annotations

from typing import ClassVar

from tenonry_testkit.request_codec import RequestCodecContract


class TestMirror(RequestCodecContract):
    """Of at most 1 MiB, of which each kind of media takes 300 kB."""

    request_codec = "mirror"


class TestMirrorThatKeepsNothing(RequestCodecContract):
    request_codec = "tenonry_images.mirror:ImageMirror"
    config: ClassVar = {"mm_cache_mib": 0}
    effort = 0.5
