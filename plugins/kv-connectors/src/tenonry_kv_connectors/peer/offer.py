"""An offer: where the K/V of a prompt can be fetched, as `kv_transfer_params` carry it. Engine process.

Whoever has the deployment's key file can make one, and only those: an offer that a client made up is not followed, so
no request makes an engine read blocks from a place of the client's choice.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import msgspec

from tenonry.transport.keys import CurveKeys

SEAL_BYTES = 16
WANTS_OFFER = (
    "do_remote_decode"  # in the parameters of a request whose prompt another engine will ask for
)
READERS = "num_readers"  # in addition: number of requests that will load


class Offer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """K/V of the first `blocks` blocks of a prompt, under a token.

    `peer`: an address per rank. `identity`: of model and configuration. `last`: the digest of the last block, which
    covers all tokens before it. `number` counts the offers of an engine; `made`: seconds since the epoch.
    """

    engine_id: str
    peer: tuple[str, ...]
    token: str
    number: int
    blocks: int
    identity: str
    last: str
    made: float
    seal: str = ""


class Sealer:
    """Makes offers that engines with the same keys accept."""

    def __init__(self, keys: CurveKeys) -> None:
        self._key = hashlib.blake2b(keys.server_secret + keys.client_secret).digest()

    def sealed(self, offer: Offer) -> dict[str, Any]:
        """The offer as parameters for the client."""
        found: dict[str, Any] = msgspec.to_builtins(
            msgspec.structs.replace(offer, seal=self._seal(offer))
        )
        return found

    def opened(self, parameters: dict[str, Any]) -> Offer | None:
        """The offer in a request's parameters; None for what is none, or has another seal."""
        try:
            offer = msgspec.convert(parameters, Offer)
        except msgspec.ValidationError:
            return None
        is_ours = hmac.compare_digest(offer.seal.encode(), self._seal(offer).encode())
        return offer if is_ours else None

    def _seal(self, offer: Offer) -> str:
        text = msgspec.json.encode(msgspec.structs.replace(offer, seal=""))
        return hashlib.blake2b(text, key=self._key, digest_size=SEAL_BYTES).hexdigest()
