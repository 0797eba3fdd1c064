"""Records of a plugin reach the log of its process only below the logger `tenonry`, which processes of ours set up."""

from __future__ import annotations

import re

from house import ROOT, distributions

FROM_THE_MODULE = re.compile(r"getLogger\((__name__)?\)")
KERNEL = "tenonry"  # its modules are below that logger by their own names


def test_no_plugin_logs_under_its_modules_name():
    sources = [
        file for dist in distributions() if dist.import_name != KERNEL for file in dist.sources
    ]
    assert sources
    found = [file for file in sources if FROM_THE_MODULE.search(file.read_text(encoding="utf-8"))]
    assert [str(file.relative_to(ROOT)) for file in found] == []
