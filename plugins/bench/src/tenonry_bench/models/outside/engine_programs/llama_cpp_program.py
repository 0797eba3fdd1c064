"""llama.cpp through the C interface of llama-cpp-python: every request is a sequence, all of them in each decode.

Prompts share the cells of their common prefix, as in llama.cpp's own batched benchmark.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from .answers import Options, Prompts, Run, Score, Times, answer_runs, check_counts, read_options
from .qwen3_gguf import write_gguf

BATCH = 2048  # tokens per call of llama_decode, its default
SHORTEST_SHARED = 32  # a common beginning below this is not worth a copy of cells
CELLS = 256  # the number of cells per sequence is a multiple of it


class Shape(NamedTuple):
    """Sizes of a context: `length` counts a sequence's prompt and new tokens, `shared` those of the common prefix."""

    sequences: int
    length: int
    shared: int

    def cells(self) -> int:
        """Cells of the KV cache."""
        own = self.length - self.shared
        rounded = -(-own // CELLS) * CELLS
        total = self.sequences * rounded
        if self.shared:
            total += self.shared + CELLS
        return total


class Entry(NamedTuple):
    """One token to compute, and whether the next one is sampled from it."""

    token: int
    position: int
    sequence: int
    samples: bool


class Decoder:
    """One context of llama.cpp of a given `Shape`."""

    def __init__(self, api: Any, model: Any, threads: int, shape: Shape) -> None:
        params = api.llama_context_default_params()
        params.n_ctx = shape.cells()
        params.kv_unified = bool(shape.shared)
        params.n_batch = BATCH
        params.n_seq_max = shape.sequences
        params.n_threads = threads
        params.n_threads_batch = threads
        params.no_perf = True
        self._api = api
        self._context = api.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp gives no context for {shape}")
        self._memory = api.llama_get_memory(self._context)
        self._batch = api.llama_batch_init(BATCH, 0, 1)
        vocabulary = api.llama_model_get_vocab(model)
        self._vocab_size = api.llama_vocab_n_tokens(vocabulary)
        self._numpy = importlib.import_module("numpy")

    def clear(self) -> None:
        """Forget all sequences."""
        self._api.llama_memory_clear(self._memory, True)

    def copy(self, tokens: int, sequences: int) -> None:
        """Copy the first tokens of sequence 0 to all sequences."""
        for sequence in range(1, sequences):
            self._api.llama_memory_seq_cp(self._memory, 0, sequence, 0, tokens)

    def decode(self, entries: list[Entry]) -> list[int]:
        """Compute at most one batch; the best next tokens, in the order of the entries."""
        return [int(logits.argmax()) for logits in self.logits(entries)]

    def logits(self, entries: list[Entry]) -> list[Any]:
        """Compute at most one batch; the logits of entries that sample, as views that the next batch overwrites."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for index, entry in enumerate(entries):
            batch.token[index] = entry.token
            batch.pos[index] = entry.position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = entry.sequence
            batch.logits[index] = entry.samples
        status = self._api.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode gave {status}")
        sampling = [index for index, entry in enumerate(entries) if entry.samples]
        return [self._logits_of(index) for index in sampling]

    def _logits_of(self, index: int) -> Any:
        logits = self._api.llama_get_logits_ith(self._context, index)
        return self._numpy.ctypeslib.as_array(logits, shape=(self._vocab_size,))


def load(options: Options) -> tuple[str, Run, Score]:
    """The model, one run on it, and the score of a text; a context per shape of a run is made before it is timed."""
    api = importlib.import_module("llama_cpp")
    api.llama_backend_init()
    file = gguf_of(options)
    params = api.llama_model_default_params()
    model = api.llama_model_load_from_file(str(file).encode(), params)
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {file}")
    decoders: dict[Shape, Decoder] = {}
    threads = options["threads"]

    def run(prompts: Prompts, out_len: int) -> Times:
        shared = shared_tokens(prompts)
        shape = Shape(len(prompts), len(prompts[0]) + out_len, shared)
        if shape not in decoders:
            decoders[shape] = Decoder(api, model, threads, shape)
        return generate(decoders[shape], prompts, out_len, shared)

    def score(tokens: Any) -> dict[str, Any]:
        decoder = Decoder(api, model, threads, Shape(1, len(tokens), 0))
        return {"tokens": tokens, "nll": negative_log_likelihoods(decoder, tokens)}

    return api.__version__, run, score


def negative_log_likelihoods(decoder: Decoder, tokens: list[int]) -> list[float]:
    """Of each token but the first, in nats."""
    numpy = importlib.import_module("numpy")
    found = []
    entries = [Entry(token, at, 0, True) for at, token in enumerate(tokens[:-1])]
    for piece in pieces(entries):
        for entry, logits in zip(piece, decoder.logits(piece), strict=True):
            exact = logits.astype(numpy.float64)
            top = exact.max()
            log_sum = top + numpy.log(numpy.exp(exact - top).sum())
            found.append(float(log_sum - exact[tokens[entry.position + 1]]))
    return found


def generate(decoder: Decoder, prompts: Prompts, out_len: int, shared: int) -> Times:
    """One run: the prompts in batches, then a token of every sequence per call."""
    decoder.clear()
    start = time.perf_counter()
    if shared:
        for entries in pieces(common_entries(prompts[0][:shared])):
            decoder.decode(entries)
        decoder.copy(shared, len(prompts))
    tokens: list[int] = []
    first: list[float] = []
    for entries in pieces(own_entries(prompts, shared)):
        found = decoder.decode(entries)
        took = time.perf_counter() - start
        tokens += found
        first += [took] * len(found)
    made = 1
    end = len(prompts[0])
    for at in range(end, end + out_len - 1):
        entries = [Entry(token, at, row, True) for row, token in enumerate(tokens)]
        tokens = decoder.decode(entries)
        made += 1
    wall = time.perf_counter() - start
    check_counts([made], out_len)
    gaps = max(1, out_len - 1)
    return {"wall": wall, "ttft": first, "tpot": [(wall - each) / gaps for each in first]}


def common_entries(tokens: list[int]) -> list[Entry]:
    """The common prefix of all prompts, computed once in sequence 0."""
    return [Entry(token, at, 0, False) for at, token in enumerate(tokens)]


def own_entries(prompts: Prompts, shared: int) -> list[Entry]:
    """The tokens after it; the last token of each prompt samples."""
    entries = []
    for row, prompt in enumerate(prompts):
        last = len(prompt) - 1
        for at, token in enumerate(prompt):
            if at < shared:
                continue
            entry = Entry(token, at, row, at == last)
            entries.append(entry)
    return entries


def pieces(entries: list[Entry]) -> list[list[Entry]]:
    """Split entries into batches."""
    starts = range(0, len(entries), BATCH)
    return [entries[start : start + BATCH] for start in starts]


def shared_tokens(prompts: Prompts) -> int:
    """Length of the common prefix of all prompts, less than the shortest; 0 if sharing is not worth it."""
    if len(prompts) == 1:
        return 0
    shortest = min(map(len, prompts))
    common = 0
    while common < shortest:
        tokens = {prompt[common] for prompt in prompts}
        if len(tokens) > 1:
            break
        common += 1
    return common if SHORTEST_SHARED <= common < shortest else 0


def gguf_of(options: Options) -> Path:
    """The model as llama.cpp reads it: the one GGUF file of its folder, or one written to the scratch folder."""
    folder = Path(options["model"])
    there = sorted(folder.glob("*.gguf"))
    if there:
        return there[0]
    written = Path(options["scratch"]) / f"{folder.name}.gguf"
    if not written.exists():
        write_gguf(folder, written)
    return written


def main() -> int:
    """Run the program with the options on the command line."""
    options = read_options(sys.argv[1:])
    if options.get("prepare"):
        gguf_of(options)
        return 0
    return answer_runs(lambda: load(options))


if __name__ == "__main__":
    sys.exit(main())
