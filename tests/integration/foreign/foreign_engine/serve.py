"""`tenonry serve-counter`: an HTTP server on asyncio's streams. `GET /TEXT` returns the text's continuation."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
from urllib.parse import unquote

from foreign_engine import CHOICES
from tenonry.client.async_llm import AsyncLLM
from tenonry.config import EngineConfig
from tenonry.interfaces.command import Command
from tenonry.sampling_params import OutputKind, SamplingParams


class ServeCounter(Command):
    """Prints its port once it listens; SIGTERM ends it."""

    summary = "Serve the model counter over HTTP."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--length", type=int, default=3)

    def run(self, args: argparse.Namespace) -> int:
        llm = AsyncLLM(EngineConfig(**CHOICES))
        try:
            asyncio.run(serve(llm, args.length))
        finally:
            llm.shutdown()
        return 0


async def serve(llm: AsyncLLM, length: int) -> None:
    """Until SIGTERM."""
    numbers = itertools.count()
    params = SamplingParams(max_tokens=length, output_kind=OutputKind.DELTA)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        prompt = unquote(request.split()[1][1:])
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        async for output in llm.generate(prompt, params, str(next(numbers))):
            writer.write(output.outputs[0].text.encode())
            await writer.drain()
        writer.close()

    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await ended.wait()
