# Types of the public names, which `__init__.py` loads on first use.
from typing import Any

from tenonry.client.async_llm import AsyncLLM as AsyncLLM
from tenonry.client.llm import LLM as LLM
from tenonry.config import EngineConfig as EngineConfig
from tenonry.outputs import CompletionOutput as CompletionOutput
from tenonry.outputs import RequestOutput as RequestOutput
from tenonry.plugin.hookspecs import hookimpl as hookimpl
from tenonry.sampling_params import PoolingParams as PoolingParams
from tenonry.sampling_params import SamplingParams as SamplingParams
from tenonry.sampling_params import StructuredOutput as StructuredOutput
from tenonry.version import __version__ as __version__

def __getattr__(name: str) -> Any: ...  # for names such as LoRARequest, defined by plugins
