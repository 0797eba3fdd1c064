"""Regular expressions as trees of sets, rows, alternatives and counts, which grammar backends write anew. Pure.

Libraries pass over some constructs and read others in their own way. So an expression is parsed here as ECMA 262 and
Python read it, what is not regular is refused by name, and a set has the characters that all readings share.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tenonry_grammars import characters as chars
from tenonry_grammars.base import GrammarError
from tenonry_grammars.characters import Chars
from tenonry_grammars.edges import without_edges
from tenonry_grammars.nodes import Choice, Edge, Node, One, Repeat, Row

MAX_NESTING = 64
MAX_COUNT = 65_535
CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
NUMBERED = {"x": 2, "u": 4, "U": 8}
GROUPS = ("?:", "?P<", "?<")  # without a meaning for what is matched
COUNT = re.compile(r"\{([0-9]+)(,([0-9]*))?\}")
# In a class of a language with sets of sets these would mean something else than the characters; in ECMA 262, whose
# expressions a JSON schema has, they do not.
AMBIGUOUS = ("[", "&&", "--", "~~", "||")


def parsed(pattern: str, *, whole: bool, widest: bool = False) -> Node:
    """Tree of the expression's matches. Raises GrammarError for constructs that are not regular, or ambiguous.

    `whole`: it has to match the whole text; otherwise some part of it, as `pattern` in a JSON schema. `widest`: matches
    of any reading instead of those of all readings, for texts that must not match.
    """
    return _Parser(pattern, whole, widest).parse()


@dataclass(slots=True)
class _Parser:
    text: str
    whole: bool
    widest: bool
    place: int = 0
    depth: int = field(default=0)

    def parse(self) -> Node:
        found = self._choice()
        if self.place < len(self.text):
            raise self._error("unmatched )")
        return without_edges(found, whole=self.whole)

    def _error(self, what: str) -> GrammarError:
        return GrammarError(
            f"the regular expression cannot be read at character {self.place}: {what}"
        )

    def _not_regular(self, what: str) -> GrammarError:
        return self._error(f"{what} is not supported")

    def _next(self, text: str) -> bool:
        """Consume `text` if it comes next; return True if it did."""
        if not self.text.startswith(text, self.place):
            return False
        self.place += len(text)
        return True

    # ------------------------------------------------------------------ structure
    def _choice(self) -> Node:
        options = [self._row()]
        while self._next("|"):
            options.append(self._row())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _row(self) -> Node:
        parts: list[Node] = []
        while self.place < len(self.text) and self.text[self.place] not in "|)":
            parts.append(self._counted(self._atom()))
        return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _counted(self, part: Node) -> Node:
        counts = self._counts()
        if counts is None:
            return part
        low, high = counts
        if self._next("+"):
            raise self._not_regular("a possessive count")
        self._next("?")  # which of several matches is taken does not change what can be matched
        if self.text[self.place : self.place + 1] in {"*", "+", "?"}:
            raise self._error("a count after a count")
        return Repeat(part, low, high)

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._next(sign):
                return counts
        count = COUNT.match(self.text, self.place)
        if count is None:  # a brace that begins no count is the character
            return None
        self.place = count.end()
        low = self._number(count[1])
        high: int | None = low
        if count[2]:
            high = self._number(count[3]) if count[3] else None
        if high is not None and high < low:
            raise self._error(f"a count from {low} to {high}")
        return low, high

    def _number(self, digits: str) -> int:
        if len(digits) > len(str(MAX_COUNT)) or int(digits) > MAX_COUNT:
            raise self._error(f"a count has to be a number from 0 to {MAX_COUNT}")
        return int(digits)

    def _atom(self) -> Node:
        char = self.text[self.place]
        if char in "*+?" or COUNT.match(self.text, self.place):
            raise self._error(f"nothing to repeat before {char}")
        self.place += 1
        if char == "$" and self.widest:  # Python's also matches before a line break at the end
            return Row((Repeat(One(chars.of("\n")), 0, 1), Edge(is_end=True)))
        if char in "^$":
            return Edge(is_end=char == "$")
        if char == "(":
            return self._group()
        if char == "[":
            return One(self._class())
        if char == ".":
            return One(chars.complement(chars.of("\n")) if self.widest else chars.NOT_A_LINE_END)
        if char == "\\":
            return One(self._escape(is_negated=False))
        return One(self._literal(char))

    def _group(self) -> Node:
        if self._next("?"):
            self.place -= 1
            kind = next((one for one in GROUPS if self._next(one)), None)
            if kind is None or (
                kind == "?<" and self.text[self.place : self.place + 1] in {"=", "!"}
            ):
                raise self._not_regular("look-around, a flag or another (?...) group")
            if kind != "?:":
                _, closed, _ = self.text[self.place :].partition(">")
                if not closed:
                    raise self._error("> is missing")
                self.place = self.text.index(">", self.place) + 1
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self._error(f"groups are nested more than {MAX_NESTING} deep")
        found = self._choice()
        self.depth -= 1
        if not self._next(")"):
            raise self._error("unclosed group: ) is missing")
        return found

    # ------------------------------------------------------------------ characters
    def _literal(self, char: str) -> Chars:
        if 0xD800 <= ord(char) <= 0xDFFF:
            raise self._error("half of a surrogate pair is no character")
        return chars.of(char)

    def _escape(self, *, is_negated: bool) -> Chars:
        char = self.text[self.place : self.place + 1]
        self.place += 1
        if char in chars.SHORTHANDS:
            in_every_reading, in_any_reading = chars.SHORTHANDS[char]
            return in_any_reading if is_negated != self.widest else in_every_reading
        if char in NUMBERED:
            return self._literal(self._numbered(NUMBERED[char]))
        if char == "0" and self.text[self.place : self.place + 1].isdigit():
            raise self._not_regular("an octal escape")
        if char in CONTROLS:
            return chars.of(CONTROLS[char])
        if not char or char.isalnum():
            what = "a backreference" if char.isdigit() else f"the escape \\{char}"
            raise self._not_regular(what if char else "\\ at the end")
        return self._literal(char)

    def _numbered(self, length: int) -> str:
        digits = self.text[self.place : self.place + length]
        self.place += length
        if len(digits) < length or not set(digits) <= set("0123456789abcdefABCDEF"):
            raise self._error(f"an escape with {length} hexadecimal digits lacks some")
        code = int(digits, 16)
        if code > chars.LAST:
            raise self._error(f"{digits} is no character of Unicode")
        return chr(code)

    def _class(self) -> Chars:
        is_negated = self._next("^")
        parts: list[Chars] = []
        while not self._next("]"):
            if self.place >= len(self.text):
                raise self._error("unclosed class: ] is missing")
            low = self._member(is_negated=is_negated)
            if self.text.startswith("-]", self.place) or not self._next("-"):
                parts.append(low)
                continue
            high = self._member(is_negated=is_negated)
            parts.append(self._range(low, high))
        if not parts:
            raise self._error("a class without characters")
        found = chars.union(*parts)
        return chars.complement(found) if is_negated else found

    def _member(self, *, is_negated: bool) -> Chars:
        for text in AMBIGUOUS if self.whole else ():
            if self.text.startswith(text, self.place):
                raise self._not_regular(f"{text} in a class; with \\ before it, it is a character,")
        char = self.text[self.place : self.place + 1]
        if not char:
            raise self._error("unclosed class: ] is missing")
        self.place += 1
        if char == "\\":
            if self._next("b"):
                return chars.of("\b")
            return self._escape(is_negated=is_negated)
        return self._literal(char)

    def _range(self, low: Chars, high: Chars) -> Chars:
        ends = (low[0], high[0])
        if len(low) > 1 or len(high) > 1 or any(first != last for first, last in ends):
            raise self._error("a range between two sets of characters")
        if ends[0][0] > ends[1][0]:
            raise self._error("a range that ends before it begins")
        return chars.minus(((ends[0][0], ends[1][0]),), chars.SURROGATES)
