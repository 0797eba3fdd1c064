"""Types of command-line arguments that check their range. Command line."""

from __future__ import annotations

import argparse
import threading


def seconds(text: str) -> float:
    """A duration: finite, not negative, and short enough to wait for."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds") from None
    if not 0 <= value <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not between 0 and {threading.TIMEOUT_MAX:.0f} seconds"
        )
    return value


def count(text: str) -> int:
    """A number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not an integer") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value
