"""Writes `registers.json`, which states the registers of every kernel: `renew_registers.py 90` for a card, or all."""

from __future__ import annotations

import json
import sys

import triton
from programs import FOLDER, run

CARDS = ("80", "90", "100", "120")
TABLE = FOLDER / "registers.json"


def registers(card):
    found = {
        name: used
        for program in ("compiled.py", "compiled_matrices.py")
        for name, used in run(program, card, interpreted=False).items()
    }
    spilling = [name for name, used in found.items() if used["spills"]]
    if spilling:
        raise SystemExit(f"sm_{card}: {', '.join(spilling)} spill")
    return {name: used["registers"] for name, used in found.items()}


if __name__ == "__main__":
    stated = json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    for each in sys.argv[1:] or CARDS:
        stated[f"sm_{each}"] = registers(each)
    stated["triton"] = triton.__version__
    TABLE.write_text(json.dumps(stated, indent=1, sort_keys=True) + "\n", "utf-8")
