"""`tenonry generate` and `tenonry chat` over fakes: output, suppressed output, and exit."""

from __future__ import annotations

import argparse
import io
import os
import pty
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from tenonry.errors import EngineDeadError, ModelError, RequestError
from tenonry.sampling_params import SamplingParams
from tenonry_commands.chat import ChatCommand
from tenonry_commands.generate import DEFAULT_MODEL, GenerateCommand, default_model
from tenonry_commands.sampling_arguments import (
    FLAGS,
    add_sampling_arguments,
    sampling_from_arguments,
)
from tenonry_testkit.fakes.io_processor import ByteIOProcessor
from tenonry_testkit.plugins import TmpPlugins

pytestmark = pytest.mark.usefixtures("fake_model_site")
FAKES = "tenonry_testkit.fakes"
ENGINE = [
    "--executor", f"{FAKES}:InstantExecutor", "--worker", f"{FAKES}:FakeWorker", "--scheduler",
    f"{FAKES}:ReferenceScheduler", "--io-processor", f"{FAKES}:ByteIOProcessor", "--max-model-len", "256",
    "--allow-plugin", "fake-model",
]  # fmt: skip


def run(command: Any, *words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    status: int = command.run(parser.parse_args([*words, *ENGINE]))
    return status


class TestGenerate:
    def test_prints_the_text_and_nothing_else(self, capsys):
        assert run(GenerateCommand(), "hello", "--model", "fake") == 0
        captured = capsys.readouterr()
        assert captured.out.endswith("\n")
        assert len(captured.out) > 1
        assert captured.err == ""
        run(GenerateCommand(), "hello", "--model", "fake")
        assert capsys.readouterr().out == captured.out  # greedy by default

    def test_a_dash_reads_standard_input(self, capsys, monkeypatch):
        run(GenerateCommand(), "hello", "--model", "fake")
        expected = capsys.readouterr().out
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
        run(GenerateCommand(), "-", "--model", "fake")
        assert capsys.readouterr().out == expected

    def test_a_request_that_fails_is_status_one(self, capsys):
        bad = ["--worker-option", f"fail_row_token={ord('o')}"]
        assert run(GenerateCommand(), "hello", "--model", "fake", *bad) == 1
        captured = capsys.readouterr()
        assert (captured.out, captured.err.startswith("tenonry: error: request 0 failed: ")) == (
            "",
            True,
        )

    @pytest.mark.parametrize(
        ("words", "error", "text"),
        [
            (["--temperature", "-1"], RequestError, "temperature=-1.0"),
            (["--max-tokens", "0"], RequestError, "max_tokens=0"),
        ],
    )
    def test_bad_sampling_is_refused_by_field(self, words, error, text):
        with pytest.raises(error, match=text):
            run(GenerateCommand(), "hello", "--model", "fake", *words)

    def test_an_empty_prompt_is_refused(self):
        with pytest.raises(RequestError, match=r"the prompt .* is empty"):
            run(GenerateCommand(), "", "--model", "fake")

    def test_an_unknown_model_is_refused(self):
        with pytest.raises(ModelError, match="model 'nothing' was found by no plugin"):
            run(GenerateCommand(), "hello", "--model", "nothing")

    def test_the_demo_model_is_the_default_unless_something_else_names_one(
        self, monkeypatch, tmp_path
    ):
        none = argparse.Namespace(config=None)
        assert default_model(none) == DEFAULT_MODEL == "demo"
        assert default_model(argparse.Namespace(config="x.yaml")) is None
        monkeypatch.setenv("TENONRY_MODEL", "fake")
        assert default_model(none) is None
        assert run(GenerateCommand(), "hello") == 0

    def test_end_to_end_as_a_user_types_it(self, fake_model_site: TmpPlugins):
        environment = {**os.environ, "PYTHONPATH": str(fake_model_site.folder)}
        command = [sys.executable, "-m", "tenonry", "generate", "hello", "--model", "fake", *ENGINE]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=25, check=False
        )
        assert (done.returncode, bool(done.stdout.strip("\n"))) == (0, True), done.stderr
        command[-1] = "nobody"
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=25, check=False
        )
        assert done.returncode == 1
        assert done.stderr.startswith("tenonry: error: plugins.allow/disable name ['nobody']")


class TestChat:
    def talk(self, monkeypatch: pytest.MonkeyPatch, lines: str, *words: str) -> int:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return run(ChatCommand(), "fake", "--max-tokens", "5", *words)

    def test_answers_each_line_and_ends_with_an_empty_one(self, monkeypatch, capsys):
        assert self.talk(monkeypatch, "hi\nho\n\nnever read\n", "--system", "be kind") == 0
        assert capsys.readouterr().out.count("\n") >= 2

    def test_each_line_is_asked_with_all_that_was_said(self, monkeypatch, capsys):
        chats, render = [], ByteIOProcessor.render_chat

        def noted(self: Any, messages: Any, **options: Any) -> Any:
            chats.append([(message["role"], message["content"]) for message in messages])
            return render(self, messages, **options)

        monkeypatch.setattr(ByteIOProcessor, "render_chat", noted)
        assert self.talk(monkeypatch, "hi\nho\n", "--system", "be kind") == 0
        first, _, _ = capsys.readouterr().out.partition("\n")
        start = [("system", "be kind"), ("user", "hi")]
        assert chats == [start, [*start, ("assistant", first), ("user", "ho")]]

    def test_ends_with_the_input(self, monkeypatch, capsys):
        assert self.talk(monkeypatch, "") == 0
        assert capsys.readouterr().out == ""

    def test_a_conversation_that_grows_too_long_ends_with_the_reason(self, monkeypatch, capsys):
        assert self.talk(monkeypatch, "x" * 300 + "\n") == 1
        assert "max_model_len=256" in capsys.readouterr().err

    def test_an_engine_that_dies_is_an_error(self, monkeypatch):
        with pytest.raises(EngineDeadError, match="told to fail on token 120"):
            self.talk(
                monkeypatch,
                "x\n",
                *("--worker-option", "fail_step_token=120", "--engine-recovery", "end"),
            )

    @pytest.mark.nightly_after(1)
    @pytest.mark.parametrize("line", ["", "hello\n"])
    def test_an_interrupt_ends_it_wherever_it_is(self, fake_model_site: TmpPlugins, line):
        """Ctrl-C on a terminal: while we wait for a line, before the first answer and after it."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(fake_model_site.folder), *sys.path]),
        }
        command = [sys.executable, "-m", "tenonry", "chat", "fake", "--max-tokens", "5", *ENGINE]
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            command,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            process_group=0,
        ) as chat:
            os.close(theirs)
            assert chat.stdout is not None
            assert chat.stdout.read(2) == b"> "
            if line:
                os.write(ours, line.encode())
                assert chat.stdout.readline()
                assert chat.stdout.read(2) == b"> "
            time.sleep(0.2)  # it reports that before it reads
            os.killpg(chat.pid, signal.SIGINT)
            try:
                _, said = chat.communicate(timeout=30)
            finally:
                chat.kill()
                os.close(ours)
        assert chat.returncode == 130, said
        assert b"Traceback" not in said


class TestSamplingFlags:
    def parse(self, *words: str, **defaults: Any) -> SamplingParams:
        parser = argparse.ArgumentParser()
        add_sampling_arguments(parser)
        return sampling_from_arguments(parser.parse_args(words), defaults)

    def test_flags_win_over_defaults_and_those_over_nothing(self):
        assert self.parse() == SamplingParams()
        assert self.parse("--top-p", "0.5", top_p=0.9, top_k=5) == SamplingParams(
            top_p=0.5, top_k=5
        )
        assert self.parse("--stop", "a", "--stop", "b", "--ignore-eos") == SamplingParams(
            stop=["a", "b"], ignore_eos=True
        )

    @pytest.mark.parametrize(("name", "kind", "_"), FLAGS)
    def test_every_flag_is_a_field(self, name, kind, _):
        value = kind(1)
        assert getattr(self.parse(f"--{name.replace('_', '-')}", "1"), name) == value
