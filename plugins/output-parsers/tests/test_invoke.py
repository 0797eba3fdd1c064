"""The conformance suite over calls whose tags hold names."""

from __future__ import annotations

from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.events import CallArguments, CallEnd, CallStart, TextDelta
from tenonry_testkit.output_parser import TOOLS, Answer, OutputParserContract


def call(name: str, arguments: str) -> tuple:
    return (CallStart(name), CallArguments(arguments), CallEnd())


ADD = call("add", '{"a": 1, "b": 2}')
SAY = call("say", '{"text": " x <b>\\n"}')
LOOK = Tool("look", {"type": "object", "properties": {"at": {"type": "array"}}})


class TestMiniMax(OutputParserContract):
    output_parser = "minimax"
    tools = (*TOOLS, LOOK)
    answers = (
        Answer(
            'So.\n<minimax:tool_call>\n<invoke name="add">\n<parameter name="a">1</parameter>\n'
            '<parameter name="b">2</parameter>\n</invoke>\n<invoke name="say">\n'
            '<parameter name="text"> x <b>\n\n</parameter>\n</invoke>\n</minimax:tool_call>\nDone.',
            (TextDelta("So."), *ADD, *SAY, TextDelta("Done.")),
        ),
        Answer(
            "<invoke name=add><parameter name=a>1</parameter></invoke>", call("add", '{"a": 1}')
        ),
        Answer(
            '<invoke name="look"><parameter name="at">[1, "x"]</parameter></invoke>'
            '<invoke name="look"><parameter name="at">[\'x\', True]</parameter></invoke>',
            (*call("look", '{"at": [1, "x"]}'), *call("look", '{"at": ["x", true]}')),
        ),
        Answer('<minimax:tool_call>\n<invoke name="add">\n</invoke>', call("add", "{}")),
        Answer("<minimax:tool_call>none", (TextDelta("<minimax:tool_call>none"),)),
    )


class TestDeepSeekMarkup(OutputParserContract):
    output_parser = "deepseek-v3.2"
    answers = (
        Answer(
            'So.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="add">\n'
            '<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="b" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            '<｜DSML｜invoke name="say">\n<｜DSML｜parameter name="text" string="true"> x <b>\n</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            (TextDelta("So."), *ADD, *SAY),
        ),
        Answer(
            '<｜DSML｜invoke name="add"><｜DSML｜parameter name="a" string="true">1</｜DSML｜parameter>'
            "</｜DSML｜invoke>",
            call("add", '{"a": "1"}'),
        ),
    )
    effort = 0.5


class TestDeepSeekToolMarkup(OutputParserContract):
    output_parser = "deepseek-v4"
    answers = (
        Answer(
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="say">\n'
            '<｜DSML｜parameter name="text" string="true">\n x\n</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            "</｜DSML｜tool_calls>",
            call("say", '{"text": "\\n x\\n"}'),
        ),
    )
    effort = 0.3


class TestMiniCpm(OutputParserContract):
    output_parser = "minicpm"
    answers = (
        Answer(
            '<function name="say"><param name="text"><![CDATA[ x <b>\n]]></param></function>\n'
            '<function name="add"><param name="a">1</param><param name="b">2</param></function>',
            (*SAY, *ADD),
        ),
        Answer("a <function name", (TextDelta("a <function name"),)),
    )
    effort = 0.5
