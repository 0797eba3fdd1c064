"""Template files: Jinja in the sandbox of chat templates, or `string.Template`. Front end.

The file is the operator's; a request supplies the text of `prompt` and nothing else.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path

from tenonry.errors import ConfigError

JINJA = (".jinja", ".j2")
VARIABLE = "prompt"
Render = Callable[[str], str]


def load_template(path: str) -> Render:
    """The template of a file as a function of the prompt. Raises ConfigError for a file that is none."""
    try:
        source = Path(path).read_text("utf-8").removesuffix("\n")
    except OSError as error:
        raise ConfigError(f"prompt_template={path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"prompt_template={path} is no UTF-8: {error.reason}") from None
    names, render = (_jinja if Path(path).suffix in JINJA else _plain)(source, path)
    if unknown := names - {VARIABLE}:
        raise ConfigError(
            f"prompt_template={path} uses {', '.join(sorted(unknown))}; its one variable is {VARIABLE}"
        )
    if VARIABLE not in names:
        raise ConfigError(
            f"prompt_template={path} does not use {VARIABLE}; every prompt would be alike"
        )
    return render


def _jinja(source: str, path: str) -> tuple[set[str], Render]:
    import jinja2
    import jinja2.meta

    from tenonry_io_text.sandbox import make_environment

    environment = make_environment()
    try:
        names = jinja2.meta.find_undeclared_variables(environment.parse(source))
        template = environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ConfigError(f"prompt_template={path} is no Jinja template: {error}") from None
    return names - environment.globals.keys(), lambda prompt: template.render({VARIABLE: prompt})


def _plain(source: str, path: str) -> tuple[set[str], Render]:
    template = string.Template(source)
    if not template.is_valid():
        raise ConfigError(
            f"prompt_template={path} has a $ without a name; write $$ for the character"
        )
    return set(template.get_identifiers()), lambda prompt: template.substitute({VARIABLE: prompt})
