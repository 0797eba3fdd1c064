"""`tenonry chat [MODEL]`: a conversation in the terminal, streamed as it is generated."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from tenonry.errors import ConfigError, RequestError
from tenonry.interfaces.command import Command
from tenonry.sampling_params import OutputKind, SamplingParams
from tenonry_commands.arguments import add_engine_arguments, config_from_arguments
from tenonry_commands.familiar_flags import add_familiar_flags
from tenonry_commands.generate import default_model
from tenonry_commands.sampling_arguments import add_sampling_arguments, sampling_from_arguments
from tenonry_commands.text_input import as_unicode, read_line

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

DEFAULT_MAX_TOKENS = 256


class ChatCommand(Command):
    """Reads lines, answers each; an empty line or end of input ends the conversation."""

    summary = "Chat with a model in the terminal."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--system", metavar="TEXT", help="System message that opens the conversation."
        )
        add_sampling_arguments(parser)
        add_engine_arguments(parser)
        add_familiar_flags(parser)

    def run(self, args: argparse.Namespace) -> int:
        args.model = args.model or (None if args.model_tag else default_model(args))
        config = config_from_arguments(args)

        from tenonry.client.async_llm import AsyncLLM

        engine = AsyncLLM(config)
        try:
            defaults = {
                "max_tokens": DEFAULT_MAX_TOKENS,
                "temperature": 0.0,
                **engine.model.default_sampling,
            }
            params = msgspec.structs.replace(
                sampling_from_arguments(args, defaults), output_kind=OutputKind.DELTA
            )
            with asyncio.Runner() as runner:
                return converse(engine, params, args.system, runner)
        finally:
            engine.shutdown()


def converse(
    engine: AsyncLLM, params: SamplingParams, system: str | None, runner: asyncio.Runner
) -> int:
    """Alternate between the user's lines and streamed answers.

    The loop rests while we wait for a line: then Ctrl-C ends the reading, as no loop or thread could.
    """
    if engine.io_processor is None:
        raise ConfigError("chat needs an IO processor; leave out --io-processor none")
    messages: list[dict[str, Any]] = []
    if system:
        messages.append({"role": "system", "content": as_unicode(system)})
    for turn in itertools.count():
        line = _read_line()
        if not line:
            return 0
        messages.append({"role": "user", "content": line})
        try:
            prompt = engine.io_processor.render_chat(messages)
            answer = runner.run(_answer(engine, prompt, params, f"chat-{turn}"))
        except RequestError as error:
            sys.stderr.write(f"tenonry: error: {error}\n")
            return 1
        messages.append({"role": "assistant", "content": answer})
    return 0


async def _answer(engine: AsyncLLM, prompt: Any, params: SamplingParams, request_id: str) -> str:
    parts = []
    async for output in engine.generate(prompt, params, request_id):
        parts.append(output.outputs[0].text)
        sys.stdout.write(parts[-1])
        sys.stdout.flush()
    sys.stdout.write("\n")
    return "".join(parts)


def _read_line() -> str:
    if sys.stdin.isatty():
        sys.stdout.write("> ")
        sys.stdout.flush()
    return read_line().strip()
