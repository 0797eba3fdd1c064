"""Findings of `tenonry plugins check` and `tenonry doctor`: rules, and one line per finding. Command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Rule(Enum):
    """Rules by id, with the remedy of each. Ids are stable; an id that is gone is never used again."""

    METADATA = ("PL001", "complete [project] in pyproject.toml")
    ENTRY_POINT = ("PL002", 'write an entry point NAME = "module:Class" in the group of the kind')
    BOUNDS = ("PL003", "require the range of tenonry that was tested, with an upper bound")
    KERNEL = ("PL004", "install a release made for this tenonry, or change tenonry")
    PTH = ("PL005", "remove the .pth file: nothing of a plugin runs at the start of an interpreter")
    NAME_TAKEN = ("PL006", "choose another entry-point name, or uninstall one of the two")
    COPIES = ("PL007", "uninstall all but one")
    START = ("PL008", "`tenonry plugins list` shows what there is to choose from")
    IMPORT = ("PL101", "fix the module; `python -c 'import MODULE'` repeats it")
    HANG = ("PL102", "wait for nothing while the module is imported; do it in a method")
    EXIT = ("PL103", "raise an error of tenonry.errors instead of ending the process")
    HEAVY = (
        "PL104",
        "import it inside the methods that need it: front ends import the module to check it",
    )
    STDOUT = ("PL105", 'use logging.getLogger("tenonry.NAME"); standard output belongs to answers')
    THREAD = ("PL106", "start threads in the constructor, and end them in shutdown()")
    INTERFACE = ("PL201", "implement the interface as its reference page declares it")
    OLD_INTERFACE = (
        "PL202",
        "raise interface_version after the tests passed with the current interface",
    )
    SETTING_TAKEN = ("PL203", "rename the setting, such as PLUGIN_NAME")
    DEPRECATED = ("PL204", "use its successor before a later release removes it")
    NO_SUITE = (
        "PL301",
        "derive tests from the conformance suite of the kind; `tenonry plugins new` has an example",
    )
    SUITE = ("PL302", "fix the plugin until its tests pass")
    SKIPPED = ("PL304", "run the check where the tests run, or give them what they skip for")
    MUTANT = ("PL303", "add a test that fails with this change")

    @property
    def id(self) -> str:
        """Id for messages and scripts."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """Advice, unless a finding has more precise one."""
        return self.value[1]


WARNINGS = {
    Rule.COPIES,
    Rule.METADATA,
    Rule.OLD_INTERFACE,
    Rule.DEPRECATED,
    Rule.NO_SUITE,
    Rule.MUTANT,
}


@dataclass(frozen=True)
class Finding:
    """One breach of a rule. `file` and `line`: where to change something; empty and 0 where no file is at fault."""

    rule: Rule
    distribution: str
    text: str
    file: str = ""
    line: int = 0
    advice: str = ""

    @property
    def is_error(self) -> bool:
        """False for advice that leaves the plugin usable."""
        return self.rule not in WARNINGS

    @property
    def remedy(self) -> str:
        """Change to make."""
        return self.advice or self.rule.remedy

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file or "-"
        level = "error" if self.is_error else "warning"
        text = " ".join(self.text.split())  # of an exception, it may have several lines
        return f"{self.rule.id} {level}: {self.distribution}: {place}: {text}; {self.remedy}"

    def record(self) -> dict[str, Any]:
        """Plain values for JSON."""
        level = "error" if self.is_error else "warning"
        return {**asdict(self), "rule": self.rule.id, "level": level, "remedy": self.remedy}
