"""The kernel has one bound in tokens, which only falls; no file is longer than one can read in a sitting."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

from house import ROOT, distributions

KERNEL = ROOT / "core" / "src" / "tenonry"
MAX_KERNEL_TOKENS = 59_467
MAX_FILE_LINES = 400
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def count_tokens(source: str) -> int:
    """Return the number of tokens of `source` without comments, docstrings and layout."""
    docstrings = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    tokens = joined_fstrings(tokenize.generate_tokens(io.StringIO(source).readline))
    return sum(token.type not in LAYOUT and token.start not in docstrings for token in tokens)


def joined_fstrings(tokens: Iterator[tokenize.TokenInfo]) -> Iterator[tokenize.TokenInfo]:
    """Yield each f-string as one token, as before Python 3.12, which takes it apart."""
    start, end = getattr(tokenize, "FSTRING_START", -1), getattr(tokenize, "FSTRING_END", -1)
    depth = 0
    for token in tokens:
        if token.type == start:
            depth += 1
        elif token.type == end:
            depth -= 1
        if depth == 0:
            yield token


def kernel_tokens() -> int:
    return sum(count_tokens(file.read_text(encoding="utf-8")) for file in KERNEL.rglob("*.py"))


def too_long(files: list[Path]) -> dict[str, int]:
    sizes = {str(file): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    return {name: size for name, size in sizes.items() if size > MAX_FILE_LINES}


def test_the_kernel_stays_below_its_bound():
    assert 0 < kernel_tokens() <= MAX_KERNEL_TOKENS


def test_no_source_is_longer_than_400_lines():
    assert too_long([file for dist in distributions() for file in dist.sources]) == {}


def test_a_longer_file_is_named(tmp_path: Path):
    file = tmp_path / "long.py"
    file.write_text("x = 1\n" * (MAX_FILE_LINES + 1))
    assert too_long([file]) == {str(file): MAX_FILE_LINES + 1}


def test_counts_code_only():
    source = '"""A module."""\n\nimport os  # 2 tokens\n\n\ndef call():\n    """None."""\n    return f"{os!r} {1}"\n'
    assert count_tokens(source) == 2 + 5 + 2
