"""Expressions of formats: every text that matches is right, also in its numbers."""

from __future__ import annotations

import re

import pytest

from tenonry_grammars.schemas.formats import FORMATS

RIGHT = {
    "date": ["2024-02-29", "2000-02-29", "1999-12-31"],
    "time": ["23:59:59Z", "00:00:00.5+05:30"],
    "date-time": ["2024-02-29T12:00:00Z"],
    "duration": ["P1Y2M3DT4H5M6S", "P4W", "PT36H"],
    "uuid": ["2eb8aa08-aa98-11ea-b4aa-73B441D16380"],
    "ipv4": ["0.0.0.0", "255.255.255.255"],
    "ipv6": ["::", "::1", "2001:db8::8a2e:370:7334", "1:2:3:4:5:6:7:8"],
    "email": ["joe.b@example.com"],
    "hostname": ["localhost", "a-b.example.com", "a" * 63, "a.b.c.d.e"],
    "uri": ["http://example.com:80/a?b#c", "urn:isbn:1", "mailto:a@b.c"],
    "uri-reference": ["/a/b?c", "a/b", "", "#f", "//h/p"],
    "json-pointer": ["", "/a~1b/0"],
    "relative-json-pointer": ["0", "1/a", "2#"],
}
WRONG = {
    "date": ["2023-02-29", "1900-02-29", "2024-13-01", "2024-04-31", "24-01-01"],
    "time": ["24:00:00Z", "12:60:00Z", "12:00:00"],
    "date-time": ["2024-02-30T12:00:00Z", "2024-02-29 12:00:00Z"],
    "duration": ["P", "PT", "P1D2Y", "P1Y1W"],
    "uuid": ["2eb8aa08aa9811eab4aa73b441d16380"],
    "ipv4": ["256.0.0.1", "01.2.3.4", "1.2.3"],
    "ipv6": [":::", "1::2::3", "1:2:3:4:5:6:7:8:9", "12345::", "1:2:3:4:5:6:7"],
    "email": ["a", "a@b", ".a@b.cc", "a..b@c.dd"],
    "hostname": ["", "-a", "a-", "a..b", "a_b", "xn--x", "ab--cd", "a" * 64, ".".join(["a" * 63] * 4)],
    "uri": ["/a", "http://a b", "1:a"],
    "uri-reference": ["a b", "%zz", "\\a"],
    "json-pointer": ["a", "/a~2"],
    "relative-json-pointer": ["/a", "01", "-1"],
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_text_of_the_format_matches_and_others_do_not(name):
    expression = re.compile(FORMATS[name][1:-1])
    assert [text for text in RIGHT[name] if not expression.fullmatch(text)] == []
    assert [text for text in WRONG[name] if expression.fullmatch(text)] == []
