"""Formats of texts in a JSON schema, as expressions: every text that matches is right, also in its numbers. Pure.

Libraries have expressions of their own, which allow 29 February in any year, or a label of a host of any length. A name
that JSON Schema does not define is an annotation.
"""

from __future__ import annotations

_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    f"|(?:0[13578]|1[02])-31)|{_LEAP}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ZONE = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_BYTE}\.){{3}}{_BYTE}"
_ALNUM = "[a-zA-Z0-9]"
# Two hyphens in a row mark a label in Punycode, which an expression cannot check.
_LABEL = f"(?:{_ALNUM}{{1,63}}|{_ALNUM}{{1,15}}(?:-{_ALNUM}{{1,15}}){{1,3}})"
_SHORT_LABEL = f"(?:{_ALNUM}{{1,30}}|{_ALNUM}{{1,10}}(?:-{_ALNUM}{{1,9}}){{1,2}})"
_HEX = "[0-9a-fA-F]"
_GROUP = f"{_HEX}{{1,4}}"
_SHORT = "|".join(
    f"(?:{_GROUP}:){{{before}}}(?::{_GROUP}){{1,{7 - before}}}" for before in range(1, 7)
)
_IPV6 = f"(?:(?:{_GROUP}:){{7}}{_GROUP}|{_SHORT}|(?:{_GROUP}:){{1,7}}:|:(?::{_GROUP}){{1,7}}|::)"
_URI_CHAR = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%{_HEX}{{2}})"
_PATH = f"(?:/{_URI_CHAR}*)*"
_HOST = rf"(?:(?:[a-zA-Z0-9._~-]|%{_HEX}{{2}})+|\[{_IPV6}\])"
_REST = rf"(?:\?(?:{_URI_CHAR}|[/?])*)?(?:#(?:{_URI_CHAR}|[/?])*)?"
_AUTHORITY = rf"//(?:(?:[a-zA-Z0-9._~!$&'()*+,;=:-]|%{_HEX}{{2}})*@)?{_HOST}(?::[0-9]{{1,5}})?"
_SEGMENTS = rf"{_URI_CHAR}+{_PATH}"
_URI = rf"[a-zA-Z][a-zA-Z0-9+.-]*:(?:{_AUTHORITY}{_PATH}|/(?:{_SEGMENTS})?|{_SEGMENTS}){_REST}"
_PLAIN_SEGMENT = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=@-]|%{_HEX}{{2}})+"
_REFERENCE = rf"(?:{_AUTHORITY}{_PATH}|/(?:{_SEGMENTS})?|{_PLAIN_SEGMENT}{_PATH})?{_REST}"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_NUMBER = "(?:0|[1-9][0-9]*)"
_LOCAL = r"[a-zA-Z0-9_+-]+(?:\.[a-zA-Z0-9_+-]+)*"
_HOSTNAME = rf"{_LABEL}(?:\.{_SHORT_LABEL}){{0,6}}"  # 253 characters at most
_EMAIL = rf"{_LOCAL}@(?:{_LABEL}\.)+[a-zA-Z]{{2,63}}"
_CLOCK = r"(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))"
_DAYS = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_DURATION = f"P(?:{_DAYS}{_CLOCK}?|{_CLOCK}|[0-9]+W)"

# What is right under a stricter format of the same kind is right for its wider one, too.
FORMATS = {
    name: f"^{expression}$"
    for name, expression in {
        "date": _DATE,
        "time": f"{_TIME}{_ZONE}",
        "date-time": f"{_DATE}T{_TIME}{_ZONE}",
        "duration": _DURATION,
        "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
        "ipv4": _IPV4,
        "ipv6": _IPV6,
        "email": _EMAIL,
        "idn-email": _EMAIL,
        "hostname": _HOSTNAME,
        "idn-hostname": _HOSTNAME,
        "uri": _URI,
        "iri": _URI,
        "uri-reference": _REFERENCE,
        "iri-reference": _REFERENCE,
        "uri-template": _REFERENCE,
        "json-pointer": _POINTER,
        "relative-json-pointer": f"{_NUMBER}(?:#|{_POINTER})",
    }.items()
}
# Formats of JSON Schema that no expression holds.
UNSERVED = frozenset({"regex"})
