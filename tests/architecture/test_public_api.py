"""Public names, fields and signatures are those that `docs/reference/public-api.txt` declares."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
from house import ROOT

RENEW = 'run: python docs/reference/public_api.py --renew "What changed."'


@pytest.fixture(scope="module")
def public_api() -> ModuleType:
    file = ROOT / "docs" / "reference" / "public_api.py"
    spec = importlib.util.spec_from_file_location("public_api", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_change_is_declared(public_api):
    differences = public_api.differences()
    assert not differences, "\n".join([RENEW, *differences[:40]])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(x: int) -> int: ...", "def f(x: int, y: int) -> int: ..."),
        ("def f(x: int) -> int: ...", "def f(x: int=0) -> int: ..."),
        ("def f(x): ...", "async def f(x): ..."),
        ("class A:\n  x: int = 1", "class A:\n  x: int = 2"),
        ("class A:\n  x: int", "class A:\n  y: int"),
        ("class A(B): ...", "class A: ..."),
        ("class A:\n  def f(self): ...", "class A:\n  @property\n  def f(self): ..."),
        ("class A(B, frozen=True): ...", "class A(B): ..."),
        ("X = 1", "Y = 1"),
    ],
)
def test_a_change_is_noticed(public_api, monkeypatch, tmp_path, before, after):
    file = tmp_path / "module.py"
    monkeypatch.setattr(public_api, "source_of", lambda module: file)
    file.write_text(before, "utf-8")
    first = public_api.described("module")
    file.write_text(after, "utf-8")
    assert public_api.described("module") != first


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(x: int) -> int: ...", "def f(x: int) -> int:\n  return x"),
        ("class A:\n  _x: int", "class A:\n  _y: int"),
        ("class A:\n  def test_a(self): ...", "class A:\n  def test_b(self): ..."),
        ("X = 1", "X = 2"),
        ("def _f(): ...", "def _g(): ..."),
    ],
)
def test_the_inside_is_free(public_api, monkeypatch, tmp_path, before, after):
    file = tmp_path / "module.py"
    monkeypatch.setattr(public_api, "source_of", lambda module: file)
    file.write_text(before, "utf-8")
    first = public_api.described("module")
    file.write_text(after, "utf-8")
    assert public_api.described("module") == first


def test_renewing_demands_a_sentence(public_api, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(public_api, "FILE", tmp_path / "public-api.txt")
    monkeypatch.setattr(public_api, "CHANGELOG", tmp_path / "CHANGELOG.md")
    (tmp_path / "CHANGELOG.md").write_text("### Changed\n\n- Before.\n", "utf-8")
    monkeypatch.setattr("sys.argv", ["public_api.py", "--renew"])
    assert public_api.main() == 2
    assert "One sentence" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["public_api.py", "--renew", "A new method."])
    assert public_api.main() == 0
    assert public_api.differences() == []
    text = (tmp_path / "CHANGELOG.md").read_text("utf-8")
    assert text == "### Changed\n\n- Public API: A new method.\n- Before.\n"
