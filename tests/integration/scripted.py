"""A server whose worker answers by a script, for tests of the server's processing of answers. Test process."""

from __future__ import annotations

import json
from pathlib import Path

from server_process import ForkedServer, Server
from tokenizers import Tokenizer

from tenonry_demo_model import model_path

WORKER = '''
import json

import numpy as np

from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.worker import Worker
from tenonry.kv_cache import KVCacheGroup, MemoryReport
from tenonry.step import ModelRunnerOutput
from tenonry_scheduling.columns import BatchState


class ScriptOptions(PluginOptions):
    path: str


class Scripted(Worker):
    """Answers every request with the tokens of a file."""

    Options = ScriptOptions

    def load(self):
        with open(self.context.options.path) as file:
            self.script = np.array(json.load(file), np.int32)

    def kv_cache_groups(self):
        return [KVCacheGroup(layers=("none",), bytes_per_token=1)]

    def available_memory(self):
        return MemoryReport(free_bytes=1 << 20)

    def initialize_cache(self, kv_cache):
        config, groups = self.context.config, len(kv_cache.groups)
        self.state = BatchState(
            config.max_num_seqs, self.context.max_model_len, kv_cache.block_size, groups
        )

    def execute_model(self, output):
        inputs = self.state.apply(output)
        rows = inputs.row[inputs.samples]
        tokens = self.script[self.state.num_output[rows] - 1]
        self.state.record_sampled(rows, tokens)
        offsets = np.arange(len(rows) + 1, dtype=np.int32)
        return ModelRunnerOutput(
            step_id=output.step_id, row=rows, offsets=offsets, token_ids=tokens
        )
'''
TEMPLATE = (
    '{{ tools | tojson }} <tool_call> "arguments" <think>'
    "{% for message in messages %}{{ message.content }}{% endfor %}"
)


def demo_tokenizer() -> Tokenizer:
    """The tokenizer of the demo model."""
    return Tokenizer.from_file(str(Path(model_path()) / "tokenizer.json"))


def start_scripted(folder: Path, answer: str, *arguments: str) -> Server:
    """A server that is starting, with files of its own in `folder`, and answers every request with `answer`."""
    (folder / "scripted.py").write_text(WORKER)
    (folder / "tools.jinja").write_text(TEMPLATE)
    tokenizer = demo_tokenizer()
    ids = tokenizer.encode(answer, add_special_tokens=False).ids
    (folder / "script.json").write_text(json.dumps([*ids, tokenizer.token_to_id("<|im_end|>")]))
    return ForkedServer(
        Path(model_path()),
        "--worker",
        f"{folder}/scripted.py:Scripted",
        "--worker-option",
        f"path={folder}/script.json",
        "--chat-template",
        f"{folder}/tools.jinja",
        *arguments,
    )
