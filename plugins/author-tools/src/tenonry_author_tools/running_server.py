"""A running server, over HTTP: its settings, probes of its latency, the replacement of its engines. Command line."""

from __future__ import annotations

import itertools
import json
import statistics
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from tenonry.errors import ConfigError, LaunchError

TIMEOUT_S = 600.0
NUM_PROBES = 8
CONCURRENCY = 4
PROBE = {"prompt": "Once upon a time", "max_tokens": 24, "stream": True, "ignore_eos": True}


class Latency(NamedTuple):
    """Medians over probes, in seconds: time to the first token, and between tokens."""

    ttft_s: float
    itl_s: float


class RunningServer:
    """A server at a URL. Every method raises LaunchError if it cannot be reached, or with the text of its refusal."""

    def __init__(self, url: str, key: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url {url!r} must begin with http:// or https://")
        self.url = url.rstrip("/")
        self._key = key

    def text(self, path: str) -> str:
        """The answer of a GET route."""
        with self._open(path) as response:
            text: str = response.read().decode()
        return text

    def settings(self) -> dict[str, Any]:
        """Settings of its start that are not the default."""
        found: dict[str, Any] = json.loads(self.text("/server_info"))
        return found

    def replace(self) -> None:
        """Start engines anew with the plugins as they are now; open streams go on in them."""
        with self._open("/replace", {"changes": {}}) as response:
            response.read()

    def probe(self) -> Latency:
        """Latency of short completions, a few at a time."""
        model = json.loads(self.text("/v1/models"))["data"][0]["id"]
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            found = [*pool.map(self._probe, [model] * NUM_PROBES)]
        gaps = [gap for _, own in found for gap in own]
        return Latency(
            statistics.median(first for first, _ in found), statistics.median(gaps or [0.0])
        )

    def _probe(self, model: str) -> tuple[float, list[float]]:
        times = [time.perf_counter()]
        with self._open("/v1/completions", {"model": model, **PROBE}) as response:
            times += [time.perf_counter() for line in response if line.startswith(b'data: {"')]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        if not gaps:
            raise LaunchError(f"{self.url}: a probe got no token")
        return gaps[0], gaps[1:]

    def _open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(  # noqa: S310 - checked above
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {self._key}"},
        )
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310 - as above
        except urllib.error.HTTPError as error:
            raise LaunchError(
                f"{self.url}{path} answered {error.code}: {_message(error)}"
            ) from None
        except OSError as error:
            raise LaunchError(f"{self.url} cannot be reached: {error}; give --url") from None


def _message(error: urllib.error.HTTPError) -> str:
    """Message of the server, with a hint if it has no such route."""
    with error:
        text = error.read().decode(errors="replace")
    try:
        message = str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = text[:500]
    hint = "; the server needs --enable-operator-routes and --api-key" if error.code == 404 else ""
    return message + hint
