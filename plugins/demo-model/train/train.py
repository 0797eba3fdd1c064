"""Trains the demo model from nothing: corpus, tokenizer, network, weights. Run by hand: `python train/train.py`.

One thread, one seed; about twenty-five minutes on one core. The README lists the parts that are reproducible to the
bit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from corpus import SEED, documents
from network import Network, Shape, to_llama
from tokenizer import SPECIALS, build, save
from tokenizers import Tokenizer
from torch import Tensor

MODEL = Path(__file__).resolve().parents[1] / "src" / "tenonry_demo_model" / "model"
TOKENS_PER_STEP = 2048
LENGTHS = (
    (0.10, 128),
    (0.40, 256),
    (0.75, 512),
    (0.90, 1024),
    (1.0, 2048),
)  # until this share of the run
PAD_ID, END_IDS = 0, [2, 0]  # end of text; end of a turn, end of text


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rates and sequence lengths over the run; `steps` is the whole run."""

    steps: int
    muon_lr: float = 0.012
    adam_lr: float = 0.003
    warmup: int = 30
    flat: float = 0.35

    def scale(self, step: int) -> float:
        """Factor of the learning rates: warm-up, flat, then a straight line down to zero."""
        decay = (self.steps - step) / (self.steps * (1 - self.flat))
        return min(1.0, (step + 1) / self.warmup, decay)

    def length(self, step: int) -> int:
        """Sequence length in tokens: short ones first, for a smaller search space."""
        at = step / self.steps
        return next(length for end, length in LENGTHS if at < end)


class Packer:
    """Packs tokenized documents into sequences that start with a document and cut the last one off."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._encoded = self._encode()

    def _encode(self) -> Iterator[list[int]]:
        texts = documents()
        while chunk := list(itertools.islice(texts, 256)):
            yield from (encoding.ids for encoding in self._tokenizer.encode_batch_fast(chunk))

    def batch(self, rows: int, length: int) -> Tensor:
        """The next [rows, length] token ids; documents are divided by the end-of-text token (id 0)."""
        return torch.tensor([self._row(length) for _ in range(rows)])

    def _row(self, length: int) -> list[int]:
        row: list[int] = []
        while len(row) < length:
            row += [*next(self._encoded), 0]
        return row[:length]


def optimizers(network: Network, schedule: Schedule) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, Adam for embedding and norms."""
    matrices = [p for p in network.layers.parameters() if p.ndim == 2]
    others = [p for p in network.parameters() if not any(p is m for m in matrices)]
    return [
        torch.optim.Muon(matrices, lr=schedule.muon_lr, momentum=0.95, weight_decay=0.05),
        torch.optim.AdamW(others, lr=schedule.adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def write(network: Network, tokenizer: Tokenizer, folder: Path) -> None:
    """Save weights (bfloat16), configs, tokenizer and chat template into `folder`."""
    to_llama(network, END_IDS, PAD_ID).save_pretrained(str(folder))
    (folder / "model.safetensors").chmod(0o644)
    generation = {
        "do_sample": True, "temperature": 0.7, "top_p": 0.95, "eos_token_id": END_IDS, "pad_token_id": PAD_ID,
    }  # fmt: skip
    (folder / "generation_config.json").write_text(
        json.dumps(generation, indent=2) + "\n", encoding="utf-8"
    )
    save(tokenizer, folder, network.shape.max_positions)


def check(network: Network, ids: Tensor, folder: Path) -> None:
    """Raise RuntimeError unless transformers computes the same loss from the saved files, up to bfloat16 rounding."""
    from transformers import LlamaForCausalLM

    llama = LlamaForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    with torch.no_grad():
        ours, theirs = (
            network.loss(ids, torch.float32).item(),
            llama(input_ids=ids, labels=ids).loss.item(),
        )
    if not math.isclose(ours, theirs, abs_tol=0.01):
        raise RuntimeError(
            f"loss {ours:.4f} here, {theirs:.4f} in transformers: network.py is not that Llama"
        )
    print(f"loss in float32 {ours:.4f}, in transformers with bfloat16 weights {theirs:.4f}")


def train(schedule: Schedule, folder: Path, save_every: int) -> None:
    """The whole run; prints the loss every 20 steps and saves at the end and every `save_every` steps."""
    torch.manual_seed(SEED)
    shape = Shape()
    tokenizer = build(shape.vocab)
    if tokenizer.get_vocab_size() != shape.vocab or [
        tokenizer.token_to_id(s) for s in SPECIALS
    ] != [0, 1, 2]:
        raise RuntimeError(
            f"the tokenizer has {tokenizer.get_vocab_size()} tokens, not {shape.vocab}"
        )
    network, packer = Network(shape), Packer(tokenizer)
    parts, started, mean = optimizers(network, schedule), time.monotonic(), 0.0
    for step in range(schedule.steps):
        length = schedule.length(step)
        for part, rate in zip(parts, (schedule.muon_lr, schedule.adam_lr), strict=True):
            part.param_groups[0]["lr"] = rate * schedule.scale(step)
        loss = network.loss(packer.batch(TOKENS_PER_STEP // length, length), torch.bfloat16)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for part in parts:
            part.step()
            part.zero_grad()
        mean = loss.item() if step == 0 else 0.95 * mean + 0.05 * loss.item()
        if step % 20 == 0 or step == schedule.steps - 1:
            print(
                f"step {step} loss {mean:.4f} seconds {time.monotonic() - started:.0f}", flush=True
            )
        if save_every and step % save_every == save_every - 1:
            write(network, tokenizer, folder)
    write(network, tokenizer, folder)
    check(network, packer.batch(2, 1024), folder)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=MODEL)
    parser.add_argument("--save-every", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.output.mkdir(parents=True, exist_ok=True)
    train(Schedule(args.steps), args.output, args.save_every)


if __name__ == "__main__":
    main()
