"""Programs beside the tests, in processes of their own: with Triton's interpreter, or with its compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def run(program: str, *arguments: str, interpreted: bool) -> dict:
    """Return the JSON object in the last line that the program prints."""
    env = {**os.environ, "TRITON_INTERPRET": "1" if interpreted else "0"}
    ended = subprocess.run(
        [sys.executable, str(FOLDER / program), *arguments],
        env=env, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])
