"""`python -m tenonry_bench WORDS`: the same as `tenonry bench WORDS`; the standard set runs its parts through it."""

from __future__ import annotations

import argparse
import sys

from tenonry.errors import TenonryError
from tenonry_bench.command import BenchCommand


def main(words: list[str] | None = None) -> int:
    """Parse and run; an error on purpose is one line on standard error and status 1."""
    command = BenchCommand()
    parser = argparse.ArgumentParser(prog="tenonry bench", description=command.summary)
    command.add_arguments(parser)
    try:
        return command.run(parser.parse_args(words))
    except TenonryError as error:
        print(f"tenonry bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
