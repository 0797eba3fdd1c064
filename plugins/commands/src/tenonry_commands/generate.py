"""`tenonry generate PROMPT`: complete one prompt in this process and print the text on standard output."""

from __future__ import annotations

import argparse
import os
import sys

from tenonry.config.sources import ENV_PREFIX
from tenonry.interfaces.command import Command
from tenonry_commands.arguments import add_engine_arguments, config_from_arguments
from tenonry_commands.familiar_flags import add_familiar_flags
from tenonry_commands.sampling_arguments import add_sampling_arguments, sampling_from_arguments
from tenonry_commands.text_input import as_unicode, read_standard_input

DEFAULT_MODEL = "demo"
DEFAULT_MAX_TOKENS = 64


class GenerateCommand(Command):
    """One prompt, one answer."""

    summary = "Complete one prompt and print the text."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "prompt", metavar="PROMPT", help="Text to complete; - reads standard input."
        )
        add_sampling_arguments(parser)
        add_engine_arguments(parser, model_positional=False)
        add_familiar_flags(parser)

    def run(self, args: argparse.Namespace) -> int:
        args.model = args.model or default_model(args)
        config = config_from_arguments(args)
        prompt = read_standard_input() if args.prompt == "-" else as_unicode(args.prompt)

        from tenonry.client.llm import LLM

        with LLM(config=config) as llm:
            defaults = {"max_tokens": DEFAULT_MAX_TOKENS, "temperature": 0.0}
            output = llm.generate(
                [prompt], sampling_from_arguments(args, defaults), use_tqdm=False
            )[0]
        if output.error is not None:
            sys.stderr.write(f"tenonry: error: {output.error}\n")
            return 1
        for completion in output.outputs:
            sys.stdout.write(completion.text + "\n")
        return 0


def default_model(args: argparse.Namespace) -> str | None:
    """The demo model, unless a configuration file or the environment may name another."""
    return None if args.config or os.environ.get(f"{ENV_PREFIX}MODEL") else DEFAULT_MODEL
