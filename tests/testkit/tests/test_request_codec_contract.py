"""The suite of request codecs, over the kernel's own, the fake and broken ones."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np
import pytest
from hypothesis import Phase

from tenonry.interfaces.request_codec import RequestCodec
from tenonry_testkit.fakes import KeepingCodec
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.request_codec import RequestCodecContract

PHASES = (Phase.explicit, Phase.generate)  # what fails needs not be made small
ARRIVES = "test_what_arrives_is_what_was_sent"


class TestPlain(RequestCodecContract):
    request_codec = "plain"
    config: ClassVar = {"max_images": 0}


class TestKeeping(RequestCodecContract):
    request_codec = KeepingCodec


class TestByName(RequestCodecContract):
    request_codec = "tenonry_testkit.fakes:KeepingCodec"
    effort = 0.1


class TakesEveryEngineForTheSame(KeepingCodec):
    caught_by = ARRIVES

    def known(self, peer):
        return self.sent.setdefault(0, (peer, set()))[1]

    def ended(self, peer, outcome, request):
        return False


class NeverSendsAgain(KeepingCodec):
    caught_by = "test_requests_in_flight_survive_a_loss"

    def ended(self, peer, outcome, request):
        super().ended(peer, outcome, request)
        return False


class AlwaysSendsAgain(KeepingCodec):
    caught_by = "test_a_request_is_not_sent_for_ever"

    def ended(self, peer, outcome, request):
        super().ended(peer, outcome, request)
        return True


class NeedsTheRequest(KeepingCodec):
    caught_by = "test_a_request_that_was_aborted_may_still_fail"

    def ended(self, peer, outcome, request):
        return request.media is not None and super().ended(peer, outcome, request)


class LosesPieces(KeepingCodec):
    caught_by = ARRIVES

    def decode(self, frames, client):
        request = super().decode(frames, client)
        if request.media is not None:
            media = msgspec.structs.replace(request.media, whole=np.empty((0, 2), np.int64))
            request = msgspec.structs.replace(request, media=media)
        return request


class ChangesWhatItIsGiven(KeepingCodec):
    caught_by = ARRIVES

    def encode(self, request, peer):
        frames = super().encode(request, peer)
        if request.media is not None:
            request.media.inputs[0] = {}
        return frames


class KeepsWhatWasNotSent(KeepingCodec):
    """After an error it assumes that the engine has the contents of the message."""

    caught_by = ARRIVES

    def forget(self, peer=None):
        if peer is None:
            super().forget()

    def ended(self, peer, outcome, request):
        return False


class RaisesAsItCan(KeepingCodec):
    caught_by = ARRIVES

    def encode(self, request, peer):
        return self._encoder.encode(request)


class MarksEveryMessage(KeepingCodec):
    caught_by = "test_a_request_without_media_is_sent_whole"

    def encode(self, request, peer):
        return [*super().encode(request, peer), b"mark"]


@pytest.mark.parametrize(
    "broken",
    [
        TakesEveryEngineForTheSame,
        NeverSendsAgain,
        AlwaysSendsAgain,
        NeedsTheRequest,
        LosesPieces,
        ChangesWhatItIsGiven,
        KeepsWhatWasNotSent,
        RaisesAsItCan,
        MarksEveryMessage,
    ],
)
@pytest.mark.slow
@pytest.mark.broken("request_codec")
def test_the_suite_catches(broken: type[RequestCodec]):
    suite = type("Suite", (RequestCodecContract,), {"request_codec": broken, "phases": PHASES})
    assert broken.caught_by in failing_tests(suite)
