"""Load on an OpenAI-compatible server: arrival times, result of each request, and the sums. Client process."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import msgspec

from tenonry.errors import ConfigError
from tenonry_bench.figures import percentile
from tenonry_bench.sse import Client, HttpFailure

PATH = "/v1/completions"
LIMITS = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")


class Record(msgspec.Struct):
    """One request: seconds, tokens, and why it failed if it did. `itl_s`: gaps between the pieces it came in."""

    ttft_s: float = 0.0
    e2e_s: float = 0.0
    itl_s: list[float] = []
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def tpot_s(self) -> float:
        """Mean time per token after the first piece."""
        return (self.e2e_s - self.ttft_s) / max(1, self.output_tokens - 1)

    def meets(self, limits: dict[str, float]) -> bool:
        """Return True if it ended well within all limits (ms; for ITL the longest gap counts)."""
        if self.error is not None:
            return False
        took = {
            "ttft_ms": self.ttft_s,
            "tpot_ms": self.tpot_s,
            "itl_ms": max(self.itl_s, default=0.0),
            "e2e_ms": self.e2e_s,
        }
        return all(1e3 * took[name] <= limit for name, limit in limits.items())


class LoadRun(msgspec.Struct):
    """One run: all records, how long they took together, and the CPU time of the server's processes, if we see them."""

    wall_s: float
    records: list[Record]
    server_cpu_s: float | None = None

    @property
    def good(self) -> list[Record]:
        return [record for record in self.records if record.error is None]

    @property
    def output_tokens(self) -> int:
        """Output tokens of the requests that ended well."""
        return sum(record.output_tokens for record in self.good)

    def errors(self) -> dict[str, int]:
        """Number of occurrences of each error."""
        return dict(Counter(record.error for record in self.records if record.error is not None))

    def percentile_ms(self, name: str, share: float) -> float:
        """Percentile of `ttft_s`, `tpot_s`, `e2e_s` (one per request) or `itl_s` (all gaps), over requests that ended
        well.
        """
        if name == "itl_s":
            values = [gap for record in self.good for gap in record.itl_s]
        else:
            values = [getattr(record, name) for record in self.good]
        return 1e3 * percentile(values, share)


class Load:
    """Sends prompts to a server: at most `concurrency` at a time, or `rate` per second regardless of answers, at times
    of a Poisson process with a fixed seed.
    """

    def __init__(
        self,
        client: Client,
        model: str,
        concurrency: int | None,
        rate: float | None,
        *,
        timeout_s: float,
        seed: int = 0,
    ) -> None:
        self._client = client
        self._model = model
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(concurrency) if concurrency else None
        self._rate, self._seed = rate, seed

    async def run(
        self, prompts: list[list[int]], out_len: int | list[int], starts: list[float] | None = None
    ) -> LoadRun:
        """Every prompt once; failures are recorded, never raised. `starts`: seconds from the beginning, per prompt."""
        starts = self._starts(len(prompts)) if starts is None else starts
        lengths = [out_len] * len(prompts) if isinstance(out_len, int) else out_len
        begin = time.perf_counter()
        records = await asyncio.gather(
            *(
                self._request(prompt, length, begin + start)
                for prompt, length, start in zip(prompts, lengths, starts, strict=True)
            )
        )
        return LoadRun(time.perf_counter() - begin, list(records))

    def _starts(self, count: int) -> list[float]:
        """When each request starts, in seconds from the beginning."""
        if not self._rate:
            return [0.0] * count
        draw = random.Random(self._seed)  # noqa: S311  # no secrets
        at = 0.0
        starts = []
        for _ in range(count):
            starts.append(at)
            at += draw.expovariate(self._rate)
        return starts

    async def _request(self, prompt: list[int], out_len: int, start: float) -> Record:
        await asyncio.sleep(max(0.0, start - time.perf_counter()))
        payload = self._payload(prompt, out_len)
        if self._slots is None:
            return await self._timed(payload, len(prompt), out_len)
        async with self._slots:
            return await self._timed(payload, len(prompt), out_len)

    async def _timed(self, payload: bytes, prompt_len: int, out_len: int) -> Record:
        record = Record(prompt_tokens=prompt_len, itl_s=[])
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._follow(payload, record)
        except TimeoutError:
            record.error = f"no end within {self._timeout_s:g} s"
        except (HttpFailure, OSError, msgspec.DecodeError, asyncio.IncompleteReadError) as error:
            record.error = f"{type(error).__name__}: {error}"
        if record.error is None and record.output_tokens != out_len:
            record.error = f"{record.output_tokens} of {out_len} tokens came"
        return record

    async def _follow(self, payload: bytes, record: Record) -> None:
        """Read the stream to its end; the last token's moment ends the request."""
        start = time.perf_counter()
        last = 0.0
        async for now, chunk in self._client.stream(PATH, payload):
            if chunk.usage is not None:
                record.output_tokens = chunk.usage.completion_tokens
            if not chunk.choices:
                continue
            if not last:
                record.ttft_s = now - start
            else:
                record.itl_s.append(now - last)
            last = now
            record.e2e_s = now - start

    def _payload(self, prompt: list[int], out_len: int) -> bytes:
        return msgspec.json.encode(
            {
                "model": self._model,
                "prompt": prompt,
                "max_tokens": out_len,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )


def parse_limits(texts: list[str] | None) -> dict[str, float]:
    """`ttft_ms=200` and so on. Raises ConfigError."""
    limits = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        try:
            limits[name] = float(value)
        except ValueError:
            raise ConfigError(f"--goodput '{text}' must look like ttft_ms=200") from None
        if name not in LIMITS:
            raise ConfigError(f"--goodput '{text}': the limits are {', '.join(LIMITS)}")
    return limits
