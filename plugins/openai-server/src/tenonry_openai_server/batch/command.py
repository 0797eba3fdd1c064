"""`tenonry batch IN OUT`: light until the flags and every line of the input are known to be right."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from tenonry.errors import ConfigError, TenonryError
from tenonry.interfaces.command import Command

if TYPE_CHECKING:
    from tenonry_openai_server.batch.answers import AnswerFile
    from tenonry_openai_server.batch.own_server import OwnServer

KEY_VARIABLES = ("TENONRY_API_KEY", "OPENAI_API_KEY")
DEFAULT_CONCURRENCY = 128
DEFAULT_ATTEMPTS = 6
DEFAULT_TIMEOUT_S = 3600.0


class BatchCommand(Command):
    """A file of requests in, a file of answers out."""

    summary = "Process a file of requests in OpenAI's batch format; resumes after an interruption."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "input", type=Path, metavar="IN", help="Requests, one JSON object per line."
        )
        parser.add_argument(
            "output",
            type=Path,
            metavar="OUT",
            help="Answers, one per line. Existing answers are kept.",
        )
        parser.add_argument(
            "--server",
            metavar="URL",
            help="URL of a running server, such as http://127.0.0.1:8000.",
        )
        parser.add_argument(
            "--api-key",
            metavar="KEY",
            help=f"API key, sent as a bearer token [env: {', else '.join(KEY_VARIABLES)}].",
        )
        parser.add_argument(
            "--concurrency",
            type=int,
            default=DEFAULT_CONCURRENCY,
            metavar="N",
            help=f"Concurrent requests, 1 to 4096 [default: {DEFAULT_CONCURRENCY}].",
        )
        parser.add_argument(
            "--attempts",
            type=int,
            default=DEFAULT_ATTEMPTS,
            metavar="N",
            help=f"Attempts per request at a busy or unreachable server, 1 to 100 [default: {DEFAULT_ATTEMPTS}].",
        )
        parser.add_argument(
            "--timeout",
            type=float,
            default=DEFAULT_TIMEOUT_S,
            metavar="S",
            help=f"Timeout of an answer and of the server's start in seconds [default: {DEFAULT_TIMEOUT_S:g}].",
        )
        own = parser.add_subparsers(dest="own", metavar="serve MODEL …")
        serve = own.add_parser(
            "serve",
            help="Start a server instead of --server, with the flags of `tenonry serve`.",
            add_help=False,
        )
        serve.add_argument("words", nargs=argparse.REMAINDER, help="Arguments of `tenonry serve`.")

    def run(self, args: argparse.Namespace) -> int:
        _check(args)

        from tenonry_openai_server.batch.answers import AnswerFile
        from tenonry_openai_server.batch.requests import check_requests

        wanted = check_requests(args.input)
        with AnswerFile(args.output, wanted) as answers:
            if len(answers.done) < len(wanted):
                _answer(args, answers, len(wanted))
        told = f"{len(wanted)} requests are answered in {args.output}"
        refused = f", {answers.refused} of them with an error (status_code is not 200)"
        sys.stdout.write(told + (refused if answers.refused else "") + "\n")
        return 1 if answers.refused else 0


def _check(args: argparse.Namespace) -> None:
    """Raises ConfigError for flags that contradict each other, or are out of bounds."""
    if bool(args.server) == bool(args.own):
        raise ConfigError(
            "name a server: --server URL for a running one, or `serve MODEL` at the end to "
            "start one"
        )
    for name, top in (("concurrency", 4096), ("attempts", 100)):
        value = getattr(args, name)
        if not 1 <= value <= top:
            raise ConfigError(f"--{name} {value} must be from 1 to {top}")
    if not 0 < args.timeout < float("inf"):
        raise ConfigError(f"--timeout {args.timeout:g} must be a number of seconds above 0")
    if args.server and not args.server.startswith(("http://", "https://")):
        raise ConfigError(f"--server {args.server} must begin with http:// or https://")
    if args.input.resolve() == args.output.resolve():
        raise ConfigError(f"{args.output} cannot be both input and output")


def _answer(args: argparse.Namespace, answers: AnswerFile, total: int) -> None:
    """Send the missing requests. Raises TenonryError with its progress."""
    import asyncio

    from tenonry_openai_server.batch.own_server import OwnServer

    try:
        with OwnServer(args.words) if args.own else nullcontext() as server:
            asyncio.run(_ask_all(args, answers, total, server))
    except TenonryError as error:
        done = (
            f"{len(answers.done)} of {total} requests are answered; run the same command to resume"
        )
        raise TenonryError(f"{error}; {done}") from None


async def _ask_all(
    args: argparse.Namespace, answers: AnswerFile, total: int, server: OwnServer | None
) -> None:
    import httpx
    from tqdm import tqdm

    from tenonry_openai_server.batch.client import BatchClient
    from tenonry_openai_server.batch.requests import read_requests
    from tenonry_openai_server.batch.run import BatchRun

    transport = httpx.AsyncHTTPTransport(
        uds=server.socket if server else None, limits=httpx.Limits(max_connections=args.concurrency)
    )
    async with httpx.AsyncClient(
        transport=transport,
        base_url=_root(args.server) if args.server else "http://127.0.0.1",
        headers=_headers(args.api_key),
        timeout=args.timeout,
    ) as http:
        client = BatchClient(http, args.attempts, server.check if server else lambda: None)
        if server:
            await client.wait_until_ready(args.timeout)
        missing = (one for one in read_requests(args.input) if one.custom_id not in answers.done)
        with tqdm(total=total, initial=len(answers.done), unit="line", disable=None) as bar:
            await BatchRun(client, answers, bar).run(missing, args.concurrency)


def _root(url: str) -> str:
    """Return the server's root URL, also for a client's base URL, which ends in /v1. Raises ConfigError."""
    import httpx

    try:
        return str(httpx.URL(url)).rstrip("/").removesuffix("/v1")
    except httpx.InvalidURL as error:
        raise ConfigError(f"--server {url:.200} is no URL: {error}") from None


def _headers(key: str | None) -> dict[str, str]:
    found = key or next(filter(None, map(os.environ.get, KEY_VARIABLES)), None)
    return {"authorization": f"Bearer {found}"} if found else {}
