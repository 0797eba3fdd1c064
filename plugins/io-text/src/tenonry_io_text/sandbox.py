"""Chat templates as programs: a bounded Jinja sandbox with the extensions that chat templates expect. Front end.

A template comes from the operator or from the model's folder, never from a request; a request only supplies values that
the template prints. The sandbox is immutable: a template cannot change the objects passed to it.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Iterator
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tenonry.errors import RequestError

MAX_SECONDS = 10.0


class TemplateRefusal(jinja2.TemplateError):
    """The template itself rejects the messages, with `raise_exception`."""


class TemplateTimeout(RequestError):
    """The template took more than `MAX_SECONDS`."""


class GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}` marks the assistant's text for training; rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012  (jinja declares it as an instance attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class PlainNamespace(jinja2.utils.Namespace):
    """`namespace(...)` without attributes that start with an underscore, through which internals could be reached."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # as in jinja: no name for the object itself, so that a template may write `namespace(self=…)`
        _refuse_underscores(values := dict(*args[1:], **kwargs))
        jinja2.utils.Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscores({name: value})
        super().__setitem__(name, value)


def _refuse_underscores(values: dict[Any, Any]) -> None:
    for name in values:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace must not have an attribute {name!r}")


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """The function, not the class `dict`: attributes of a class lead further than a template should go."""
    return dict(*args, **kwargs)


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(pattern: str) -> str:
    return dt.datetime.now().strftime(pattern)  # noqa: DTZ005  (templates print the server's local date)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it; jinja's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def make_environment() -> ImmutableSandboxedEnvironment:
    """The environment that all templates share; its functions and settings are those of transformers."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "namespace": PlainNamespace,
        "dict": _dict,
    }
    return environment


class ChatTemplate:
    """One compiled template. `variables`: the names it reads from outside.

    Raises jinja2.TemplateSyntaxError if `source` is no template.
    """

    def __init__(self, source: str) -> None:
        environment = make_environment()
        tree = environment.parse(source)
        self.variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
        self.source = source
        self._template = environment.from_string(source)

    def render(self, values: dict[str, Any], *, max_chars: int) -> str:
        """Render the text. Raises RequestError: rejected or failed in the template, above `max_chars`, or too slow."""
        try:
            return "".join(self._parts(values, max_chars))
        except RequestError:
            raise
        except TemplateRefusal as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {error}", "messages"
            ) from error
        except jinja2.TemplateError as error:
            raise RequestError(f"the model's chat template failed: {error}", "messages") from error
        except (
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise RequestError(
                f"the model's chat template failed on these messages ({type(error).__name__}): check their fields",
                "messages",
            ) from error

    def _parts(self, values: dict[str, Any], max_chars: int) -> Iterator[str]:
        size, deadline = 0, time.monotonic() + MAX_SECONDS
        for part in self._template.generate(values):
            size += len(part)
            if size > max_chars:
                raise RequestError(
                    f"the rendered chat has more than {max_chars} characters", "messages"
                )
            if time.monotonic() > deadline:
                raise TemplateTimeout(
                    f"the chat template took more than {MAX_SECONDS:g} s", "messages"
                )
            yield part
