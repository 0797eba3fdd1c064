"""The testkit's fixture `start_server` starts the real server, as its README shows. Real processes, the null worker."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

README = (Path(__file__).parents[1] / "testkit" / "README.md").read_text("utf-8")
EXAMPLE = re.compile(r" *```python\n *# test_my_server\.py\n(.*?)```", re.DOTALL)


def test_example_of_the_readme_passes(tmp_path, run_cli):
    found = EXAMPLE.search(README)
    assert found is not None, "the README has no example called test_my_server.py"
    (tmp_path / "test_my_server.py").write_text(textwrap.dedent(found[1]), "utf-8")
    done = run_cli(
        "-q",
        "-p",
        "no:cacheprovider",
        "test_my_server.py",
        command=(sys.executable, "-m", "pytest"),
        cwd=tmp_path,
        timeout=29,
    ).check()
    assert "1 passed" in done.stdout
