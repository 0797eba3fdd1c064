from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


def corpus(train_folder: Path, *arguments: str) -> str:
    """Run corpus.py in a process of its own: its modules have names too short to share a process with other tests."""
    command = [sys.executable, "-X", "utf8", "-B", str(train_folder / "corpus.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", check=True
    ).stdout


@pytest.fixture(scope="module")
def text(train_folder: Path) -> str:
    return corpus(train_folder, "4000")


@pytest.mark.timeout(120)
def test_corpus_is_the_one_the_model_was_trained_on(train_folder: Path) -> None:
    """The same seed gives the same text, to the byte, on every Python."""
    source = (train_folder / "corpus.py").read_text(encoding="utf-8")
    wanted = re.search(r'^SHA256 = "([0-9a-f]{64})"$', source, re.MULTILINE)
    assert wanted
    assert corpus(train_folder).split()[0] == wanted.group(1)


def test_every_template_is_filled_in(text: str) -> None:
    assert not re.findall(r"[{}\[\]]|(?<!<)\|(?!>)|  ", text)


def test_sums_are_right(text: str) -> None:
    signs = {
        "+": int.__add__,
        "-": int.__sub__,
        "*": int.__mul__,
        "plus": int.__add__,
        "minus": int.__sub__,
    }
    sums = re.findall(r"(?<![\d+*-])(\d+) ([+*-]|plus|minus) (\d+) (?:=|is) (\d+)", text)
    assert len(sums) > 3000
    wrong = [(a, sign, b, c) for a, sign, b, c in sums if signs[sign](int(a), int(b)) != int(c)]
    assert not wrong


def test_chats_are_well_formed(text: str) -> None:
    chats = [part for part in text.split("\n---\n") if part.startswith("<|im_start|>")]
    assert len(chats) > 1500
    turn = r"<\|im_start\|>user\n[^<]+<\|im_end\|>\n<\|im_start\|>assistant\n[^<]+<\|im_end\|>\n"
    shape = re.compile(rf"(<\|im_start\|>system\n[^<]+<\|im_end\|>\n)?({turn})+")
    assert [chat for chat in chats if not shape.fullmatch(chat)] == []
