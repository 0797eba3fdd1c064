"""`tenonry keys FILE`: a file that is private, new, and accepted by `--auth-key-file`."""

from __future__ import annotations

from tenonry.cli import main
from tenonry.transport.keys import CurveKeys, read_keys


def test_a_new_file_is_private_and_never_overwritten(tmp_path, capsys):
    file = tmp_path / "keys"
    assert main(["keys", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert isinstance(read_keys(str(file)), CurveKeys)
    assert main(["keys", str(file)]) == 1
    assert "cannot be written: File exists" in capsys.readouterr().err
