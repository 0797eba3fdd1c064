"""A running server, over HTTP: its settings, probes of its latency, the replacement of its engines. Command line."""

from __future__ import annotations

import http.client
import itertools
import json
import statistics
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from tenonry.errors import ConfigError, LaunchError

TIMEOUT_S = 600.0
NUM_PROBES = 8
PROBE = {"prompt": "Once upon a time", "max_tokens": 24, "stream": True, "ignore_eos": True}
HINTS = {401: "; give --api-key", 404: "; the server needs --enable-operator-routes and --api-key"}


class Latency(NamedTuple):
    """Medians over probes, in seconds: time to the first token, and between tokens."""

    ttft_s: float
    itl_s: float


class RunningServer:
    """A server at a URL.

    Every method raises LaunchError for a server that cannot be reached, rejects the request, or answers something else.
    """

    def __init__(self, url: str, key: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url {url!r} must begin with http:// or https://")
        try:
            parts = urllib.parse.urlsplit(url)
            is_complete = bool(parts.hostname) and parts.port != 0
        except ValueError as error:
            raise ConfigError(f"--url {url!r}: {error}") from None
        if not is_complete:
            raise ConfigError(f"--url {url!r} needs a host, such as http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self._key = key

    def text(self, path: str) -> str:
        """The answer of a GET route."""
        with self._open(path) as response:
            text: str = response.read().decode()
        return text

    def settings(self) -> dict[str, Any]:
        """Settings of its start that are not the default."""
        with self._open("/server_info") as response:
            found: dict[str, Any] = json.loads(response.read())
        return found

    def replace(self) -> None:
        """Start engines anew with the plugins as they are now; open streams go on in them."""
        with self._open("/replace", {"changes": {}}) as response:
            response.read()

    def probe(self) -> Latency:
        """Latency of short concurrent completions."""
        model = self._model()
        with ThreadPoolExecutor(NUM_PROBES) as pool:
            found = [*pool.map(self._probe, [model] * NUM_PROBES)]
        gaps = [gap for _, own in found for gap in own]
        return Latency(
            statistics.median(first for first, _ in found), statistics.median(gaps or [0.0])
        )

    def _model(self) -> str:
        """Name of its first model."""
        with self._open("/v1/models") as response:
            names = [str(each["id"]) for each in json.loads(response.read())["data"]]
        if not names:
            raise LaunchError(f"{self.url}/v1/models lists no model")
        return names[0]

    def _probe(self, model: str) -> tuple[float, list[float]]:
        times = [time.perf_counter()]
        with self._open("/v1/completions", {"model": model, **PROBE}) as response:
            times += [time.perf_counter() for line in response if line.startswith(b'data: {"')]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        if not gaps:
            raise LaunchError(f"{self.url}: a probe got no token")
        return gaps[0], gaps[1:]

    @contextmanager
    def _open(
        self, path: str, body: dict[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """The response, to be read and parsed within the context."""
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        try:
            request = urllib.request.Request(  # noqa: S310 - checked above
                self.url + path, None if body is None else json.dumps(body).encode(), headers
            )
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310 - as above
                yield response
        except urllib.error.HTTPError as error:
            raise LaunchError(
                f"{self.url}{path} answered {error.code}: {_message(error)}"
            ) from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise LaunchError(f"{self.url} cannot be reached: {reason}; give --url") from None
        except (http.client.HTTPException, ValueError, LookupError, TypeError) as error:
            raise LaunchError(
                f"{self.url}{path}: invalid response ({type(error).__name__}: {error}); is --url a tenonry server?"
            ) from None


def _message(error: urllib.error.HTTPError) -> str:
    """Message of the server, with a hint if it has no such route."""
    try:
        with error:
            text = error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as broken:
        return f"{type(broken).__name__}: {broken}"
    try:
        message = str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = text[:500]
    return message + HINTS.get(error.code, "")
