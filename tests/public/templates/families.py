"""Chat templates of our own, one per format of calls that public families have: a frame of roles, and calls in it."""

from __future__ import annotations

from typing import NamedTuple

FRAME = """{{- bos_token -}}
{%- if tools -%}@system@You can call functions:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}@hint@@close@{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}@tool@{{- message.content -}}@close@
{%- elif message.role == 'assistant' -%}@assistant@@before@{{- message.content or '' -}}
{%- if message.tool_calls -%}@calls@{%- endif -%}@close@
{%- else -%}@user@{{- message.content -}}@close@
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}@assistant@@prompt@{%- endif -%}
"""
EACH = "{%- for call in message.tool_calls -%}@one@{%- if not loop.last -%}@between@{%- endif -%}{%- endfor -%}"
ENTRIES = (
    "{%- for key, value in call.function.arguments.items() -%}@entry@"
    "{%- if not loop.last -%}@comma@{%- endif -%}{%- endfor -%}"
)
TEXT = "{{- value if value is string else value | tojson -}}"
JSON = '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
PARAMETERS = JSON.replace('"arguments"', '"parameters"')
NAME = "{{- call.function.name -}}"
ARGUMENTS = "{{- call.function.arguments | tojson -}}"


class Roles(NamedTuple):
    """Markup of a family's messages."""

    user: str
    assistant: str
    tool: str
    system: str
    close: str


def _line(form: str, close: str, tool: str = "tool") -> Roles:
    names = ("user", "assistant", tool, "system")
    return Roles(*(form.replace("ROLE", name) for name in names), close)


CHATML = _line("{{ '<|im_start|>ROLE\\n' }}", "{{ '<|im_end|>\\n' }}")
LLAMA = _line("{{ '<|start_header_id|>ROLE<|end_header_id|>\\n\\n' }}", "<|eot_id|>", "ipython")
LLAMA4 = _line("{{ '<|header_start|>ROLE<|header_end|>\\n\\n' }}", "<|eot|>", "ipython")
DEEPSEEK = Roles(
    "<｜User｜>", "<｜Assistant｜>", "<｜tool▁output▁begin｜>", "", "<｜end▁of▁sentence｜>"
)
GEMMA = _line("{{ '<|turn>ROLE\\n' }}", "{{ '<turn|>\\n' }}")
GEMMA3 = _line("{{ '<start_of_turn>ROLE\\n' }}", "{{ '<end_of_turn>\\n' }}")
COHERE = _line("<|START_OF_TURN_TOKEN|><|ROLE_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
GRANITE = _line("<|start_of_role|>ROLE<|end_of_role|>", "{{ '<|end_of_text|>\\n' }}")
PHI = _line("<|ROLE|>", "<|end|>")
PLAIN = _line("{{ 'ROLE: ' }}", "{{ '</s>\\n' }}")
MISTRAL = Roles("[INST]", "", "[TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "</s>")
HARMONY = Roles(
    "<|start|>user<|message|>",
    "<|start|>assistant",
    "<|start|>functions<|message|>",
    "<|start|>system<|message|>",
    "<|end|>",
)


class Family(NamedTuple):
    """A template, and the parsers that `auto` chooses for it."""

    source: str
    parsers: tuple[str, ...]


def _family(
    roles: Roles, calls: str, *parsers: str, hint: str = "", before: str = "", prompt: str = ""
) -> Family:
    source = FRAME
    parts = {**roles._asdict(), "calls": calls, "hint": hint, "before": before, "prompt": prompt}
    for name, text in parts.items():
        source = source.replace(f"@{name}@", text)
    return Family(source, parsers)


def _each(one: str, between: str = "") -> str:
    return EACH.replace("@one@", one).replace("@between@", between)


def _entries(entry: str, comma: str = "") -> str:
    return ENTRIES.replace("@entry@", entry).replace("@comma@", comma)


def _between(start: str, one: str, end: str) -> str:
    return f"{start}{_each(one, ', ')}{end}"


TAGGED = "{{ '<function=' ~ call.function.name ~ '>\\n' }}" + _entries(
    "{{ '<parameter=' ~ key ~ '>\\n' }}" + TEXT + "{{ '\\n</parameter>\\n' }}"
)
INVOKE = (
    "{{ '<MARKinvoke name=\"' ~ call.function.name ~ '\">\\n' }}"
    + _entries(
        "{{ '<MARKparameter name=\"' ~ key ~ 'MORE' }}" + TEXT + "{{ '</MARKparameter>\\n' }}"
    )
    + "{{ '</MARKinvoke>\\n' }}"
)
DSML = INVOKE.replace("MARK", "｜DSML｜").replace(
    "~ 'MORE'", "~ '\" string=\"' ~ ('true' if value is string else 'false') ~ '\">'"
)
PYTHON = (
    "{{- call.function.name + '(' -}}"
    + _entries("{{ key }}={{ value | tojson }}", ", ")
    + "{{- ')' -}}"
)
VALUES = """{%- macro shown(value) -%}
{%- if value is string -%}@q@{{ value }}@q@
{%- elif value is mapping -%}{{ '{' }}{% for k, v in value.items() %}{{ k }}:{{ shown(v) }}{% endfor %}{{ '}' }}
{%- elif value is boolean or value is number -%}{{ value | tojson }}
{%- else -%}[{% for v in value %}{{ shown(v) }}{% if not loop.last %},{% endif %}{% endfor %}]
{%- endif -%}{%- endmacro -%}"""
GEMMA_CALL = (
    "call:{{ call.function.name }}{{ '{' }}"
    + _entries("{{ key }}:{{ shown(value) }}", ",")
    + "{{ '}' }}"
)
THINK = "{{ '<think>\\n' }}"
NO_THINK = "<think></think>"
KIMI = (
    "<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>" + ARGUMENTS + "<|tool_call_end|>"
)
GLM = (
    "<tool_call>"
    + NAME
    + _entries(
        "<arg_key>{{ key }}</arg_key>{{ '\\n' }}<arg_value>" + TEXT + "</arg_value>{{ '\\n' }}"
    )
    + "</tool_call>"
)
OLD_DEEPSEEK = (
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
    "{{ call.function.name ~ '\\n```json\\n' }}" + ARGUMENTS + "{{ '\\n```' }}<｜tool▁call▁end｜>"
)
HERMES = "{{ '<tool_call>\\n' }}" + JSON + "{{ '\\n</tool_call>' }}"
COHERE_CALL = (
    '{"tool_call_id": "{{ loop.index0 }}", "tool_name": "'
    + NAME
    + '", "parameters": '
    + ARGUMENTS
    + "}"
)
HARMONY_CALL = (
    "{{ ' to=functions.' ~ message.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
    "{{- message.tool_calls[0].function.arguments | tojson -}}"
)

FAMILIES: dict[str, Family] = {
    "hermes": _family(CHATML, _each(HERMES, "{{ '\\n' }}"), "hermes"),
    "qwen": _family(CHATML, _each(HERMES, "{{ '\\n' }}"), "think", "hermes", prompt=THINK),
    "granite-4": _family(GRANITE, _each(HERMES, "{{ '\\n' }}"), "hermes"),
    "ernie": _family(
        PLAIN, _each(HERMES, "{{ '\\n' }}"), "granite-think", "hermes", hint="<think> <response>"
    ),
    "qwen-coder": _family(
        CHATML,
        _each("{{ '<tool_call>\\n' }}" + TAGGED + "{{ '</function>\\n</tool_call>' }}"),
        "qwen-coder",
    ),
    "seed-oss": _family(
        CHATML,
        _each("{{ '<seed:tool_call>\\n' }}" + TAGGED + "{{ '</function>\\n</seed:tool_call>' }}"),
        "seed-think",
        "seed-coder",
        hint="<seed:think>",
    ),
    "glm": _family(PHI, _each(GLM, "{{ '\\n' }}"), "think", "glm", hint="<think>"),
    "llama-3.1": _family(LLAMA, _each(PARAMETERS, "; "), "llama"),
    "llama-3.2": _family(LLAMA, _each(PARAMETERS, "; "), "llama", hint="<|python_tag|>"),
    "llama-4-json": _family(LLAMA4, _each(PARAMETERS, "; "), "llama"),
    "llama-4-python": _family(LLAMA4, _between("[", PYTHON, "]"), "pythonic"),
    "llama-3.2-python": _family(LLAMA, _between("[", PYTHON, "]"), "pythonic"),
    "xlam": _family(LLAMA, _between("[", JSON, "]"), "llama"),
    "lfm2": _family(CHATML, _between("<|tool_call_start|>[", PYTHON, "]<|tool_call_end|>"), "lfm2"),
    "olmo-3": _family(
        CHATML,
        "{{ '<function_calls>\\n' }}"
        + _each(PYTHON, "{{ '\\n' }}")
        + "{{ '\\n</function_calls>' }}",
        "olmo",
    ),
    "deepseek-v3": _family(
        DEEPSEEK,
        "<｜tool▁calls▁begin｜>" + _each(OLD_DEEPSEEK, "{{ '\\n' }}") + "<｜tool▁calls▁end｜>",
        "deepseek",
    ),
    "deepseek-v3.1": _family(
        DEEPSEEK,
        "<｜tool▁calls▁begin｜>"
        + _each(
            "<｜tool▁call▁begin｜>" + NAME + "<｜tool▁sep｜>" + ARGUMENTS + "<｜tool▁call▁end｜>"
        )
        + "<｜tool▁calls▁end｜>",
        "think",
        "deepseek",
        prompt="</think>",
        before="</think>",
    ),
    "deepseek-v3.2": _family(
        DEEPSEEK,
        "{{ '\\n\\n<｜DSML｜function_calls>\\n' }}" + _each(DSML) + "</｜DSML｜function_calls>",
        "think",
        "deepseek-v3.2",
        prompt=THINK,
    ),
    "deepseek-v4": _family(
        DEEPSEEK,
        "{{ '\\n\\n<｜DSML｜tool_calls>\\n' }}" + _each(DSML) + "</｜DSML｜tool_calls>",
        "think",
        "deepseek-v4",
        prompt=THINK,
    ),
    "kimi-k2": _family(
        CHATML, "<|tool_calls_section_begin|>" + _each(KIMI) + "<|tool_calls_section_end|>", "kimi"
    ),
    "kimi-k2-thinking": _family(
        CHATML,
        "<|tool_calls_section_begin|>" + _each(KIMI) + "<|tool_calls_section_end|>",
        "think",
        "kimi",
        before=NO_THINK,
    ),
    "minimax-m1": _family(
        PLAIN,
        "{{ '<tool_calls>\\n' }}" + _each(JSON + "{{ '\\n' }}") + "</tool_calls>",
        "tool-calls",
    ),
    "minimax-m2": _family(
        PLAIN,
        "{{ '<minimax:tool_call>\\n' }}"
        + _each(INVOKE.replace("MARK", "").replace("MORE", '">'))
        + "</minimax:tool_call>",
        "think",
        "minimax",
        prompt=THINK,
    ),
    "jamba": _family(PLAIN, _between("<tool_calls>[", JSON, "]</tool_calls>"), "tool-calls"),
    "hunyuan": _family(
        PLAIN,
        _between("<tool_calls>[", JSON, "]</tool_calls>"),
        "hunyuan-think",
        "tool-calls",
        hint="<think> <answer>",
    ),
    "nemotron": _family(PLAIN, _between("<TOOLCALL>[", JSON, "]</TOOLCALL>"), "nemotron"),
    "granite-3": _family(GRANITE, _between("<|tool_call|>[", JSON, "]"), "granite"),
    "granite-20b": _family(PLAIN, _each("<function_call> " + JSON, "{{ '\\n' }}"), "granite-code"),
    "phi-4": _family(PHI, _between("<|tool_call|>[", JSON, "]<|/tool_call|>"), "phi"),
    "functools": _family(LLAMA, _between("functools[", JSON, "]"), "functools"),
    "internlm": _family(
        CHATML,
        _each(
            "<|action_start|><|plugin|>{{ '\\n' }}" + PARAMETERS + "<|action_end|>", "{{ '\\n' }}"
        ),
        "internlm",
    ),
    "apertus": _family(
        PLAIN,
        _between("<|tools_prefix|>[", '{"' + NAME + '": ' + ARGUMENTS + "}", "]<|tools_suffix|>"),
        "apertus",
    ),
    "gigachat": _family(
        PLAIN,
        _each("<|function_call|>" + JSON, "{{ '\\n' }}"),
        "gigachat",
        hint="<|role_sep|> function call",
    ),
    "cohere": _family(
        COHERE, _between("<|START_ACTION|>[", COHERE_CALL, "]<|END_ACTION|>"), "cohere"
    ),
    "command-r": _family(
        COHERE,
        "{{ 'Action: ```json\\n[' }}" + _each(COHERE_CALL, ", ") + "{{ ']\\n```' }}",
        "command-r",
    ),
    "gemma-4": _family(
        GEMMA,
        VALUES.replace("@q@", '<|"|>') + _each("<|tool_call>" + GEMMA_CALL + "<tool_call|>"),
        "gemma-think",
        "gemma",
        hint="<|channel> <channel|>",
    ),
    "functiongemma": _family(
        GEMMA3,
        VALUES.replace("@q@", "<escape>")
        + _each("<start_function_call>" + GEMMA_CALL + "<end_function_call>"),
        "functiongemma",
    ),
    "mistral-v3": _family(MISTRAL, _between("[TOOL_CALLS][", JSON, "]"), "mistral"),
    "mistral-v11": _family(MISTRAL, _each("[TOOL_CALLS]" + NAME + "[ARGS]" + ARGUMENTS), "mistral"),
    "functionary": _family(
        LLAMA, _each("<function=" + NAME + ">" + ARGUMENTS + "</function>"), "functionary"
    ),
    "harmony": _family(HARMONY, HARMONY_CALL, "harmony", hint="<|channel|>"),
    "minicpm": _family(
        CHATML,
        _each(
            "{{ '<function name=\"' ~ call.function.name ~ '\">' }}"
            + _entries("{{ '<param name=\"' ~ key ~ '\">' }}" + TEXT + "</param>")
            + "</function>",
            "{{ '\\n' }}",
        ),
        "minicpm",
    ),
}
