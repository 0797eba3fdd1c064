"""Sources of temporary plugins, like those of authors. Test process; each is written to a file and imported."""

from __future__ import annotations

STAT_LOGGER = '''
from __future__ import annotations
from pydantic import Field
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.stat_logger import StatLogger

class Options(PluginOptions):
    level: int = Field(1, ge=0, le=3, description="How much.")
    where: str = "here"

class Mine(StatLogger):
    """Hears nothing in particular."""
    Options = Options
    def record(self, record):
        self.last = record

class Missing(StatLogger):
    pass

class Future(Mine):
    interface_version = 2

class Stranger:
    def record(self, record):
        pass

def function(context):
    return Mine(context)
'''

HOOKS = """
from tenonry.plugin.hookspecs import hookimpl

@hookimpl
def tenonry_get_stat_logger(name, config):
    return {answer!r} if name == {name!r} else None
"""


def raising_hooks(hook: str, arguments: str, error: str = 'ValueError("on purpose")') -> str:
    """A hook module whose hook raises."""
    return f"from tenonry.plugin.hookspecs import hookimpl\n\n@hookimpl\ndef {hook}({arguments}):\n    raise {error}\n"
