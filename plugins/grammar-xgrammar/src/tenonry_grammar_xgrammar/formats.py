"""Formats of texts in a JSON schema, as expressions: every text that matches is right, also in its numbers. Pure.

xgrammar has expressions of its own, which allow 31 February and addresses with leading zeros, and passes over a format
that it does not know.
"""

from __future__ import annotations

_YEAR = r"(19|20)[0-9]{2}|[1-9][0-9]{3}"
_DAYS = r"(0[1-9]|1[0-9]|2[0-8])"
# 29 February is left out: whether there is one depends on the year.
_DATE = rf"({_YEAR})-((0[1-9]|1[0-2])-{_DAYS}|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_ZONE = r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HEX = r"[0-9a-fA-F]"

FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}{_ZONE}$",
    "date-time": f"^{_DATE}T{_TIME}{_ZONE}$",
    "uuid": rf"^{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}$",
    "ipv4": rf"^({_BYTE}\.){{3}}{_BYTE}$",
    "email": rf"^[a-zA-Z0-9_+-]+(\.[a-zA-Z0-9_+-]+)*@({_LABEL}\.)+[a-zA-Z]{{2,63}}$",
}
