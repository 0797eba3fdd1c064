"""The conformance suite over formats whose answers have sections: Cohere, Functionary, and reasoning."""

from __future__ import annotations

from tenonry_output_parsers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    ReasoningDelta,
    TextDelta,
)
from tenonry_testkit.output_parser import Answer, OutputParserContract


def call(name: str, arguments: str) -> tuple:
    return (CallStart(name), CallArguments(arguments), CallEnd())


ADD = call("add", '{"a": 1, "b": 2}')
SAY = call("say", '{"text": "x"}')
HM = ReasoningDelta("Hm.")
YES = TextDelta("Yes.")
ACTIONS = (
    '[\n    {"tool_call_id": "0", "tool_name": "add", "parameters": {"a": 1, "b": 2}},\n'
    '    {"tool_call_id": "1", "tool_name": "say", "parameters": {"text": "x"}}\n]'
)


class TestCohere(OutputParserContract):
    output_parser = "cohere"
    answers = (
        Answer(
            f"<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>{ACTIONS}<|END_ACTION|>",
            (HM, *ADD, *SAY),
        ),
        Answer(
            "Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>",
            (HM, YES),
            "<|START_THINKING|>",
        ),
        Answer("<|START_TEXT|>Yes.<|END_TEXT|>", (YES,), "<|START_THINKING|><|END_THINKING|>"),
        Answer("<|START_ACTION|>none", (TextDelta("<|START_ACTION|>none"),)),
    )


class TestCommandR(OutputParserContract):
    output_parser = "command-r"
    answers = (
        Answer(
            f"Plan: I add.\nAction: ```json\n{ACTIONS}\n```",
            (TextDelta("Plan: I add."), *ADD, *SAY),
        ),
        Answer("Action: none", (TextDelta("Action: none"),)),
    )
    effort = 0.5


class TestFunctionary(OutputParserContract):
    output_parser = "functionary"
    answers = (
        Answer(
            'So.<function=add>{"a": 1, "b": 2}</function><function=say>{"text": "x"}</function>!',
            (TextDelta("So."), *ADD, *SAY, TextDelta("!")),
        ),
        Answer("<function=add>1</function>", (TextDelta("<function=add>1</function>"),)),
    )
    effort = 0.5


class TestFunctionaryRecipients(OutputParserContract):
    output_parser = "functionary-v3.2"
    answers = (
        Answer('add\n{"a": 1, "b": 2}>>>say\n{"text": "x"}', (*ADD, *SAY), "assistant\n\n>>>"),
        Answer('all\nSo.\n>>>add\n{"a": 1, "b": 2}', (TextDelta("So."), *ADD), ">>>"),
        Answer(">>>all\nYes.", (YES,)),
        Answer("sub\n{}", (TextDelta("sub\n{}"),), ">>>"),
    )
    effort = 0.5


class TestGraniteThink(OutputParserContract):
    output_parser = "granite-think"
    answers = (
        Answer("<think>Hm.</think>\n<response>Yes.</response>", (HM, YES)),
        Answer("<think>Hm.</think>Yes.", (HM, YES)),
        Answer("<response>", (TextDelta("<response>"),)),
    )
    effort = 0.5


class TestHunyuanThink(OutputParserContract):
    output_parser = "hunyuan-think"
    answers = (Answer("<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>", (HM, YES)),)
    effort = 0.3


class TestMiniMaxThink(OutputParserContract):
    output_parser = "minimax-think"
    answers = (Answer("<mm:think>Hm.</mm:think>Yes.", (HM, YES)), Answer("</mm:think>Yes.", (YES,)))
    effort = 0.3


class TestMiniCpmThink(OutputParserContract):
    output_parser = "minicpm-think"
    answers = (Answer("<|thought_start|>\nHm.\n<|thought_end|>\nYes.", (HM, YES)),)
    effort = 0.3


class TestAprielThink(OutputParserContract):
    output_parser = "apriel-think"
    answers = (
        Answer("Hm.\n[BEGIN FINAL RESPONSE]\nYes.", (HM, YES), "Here are my reasoning steps:\n"),
    )
    effort = 0.3


class TestSeedCoder(OutputParserContract):
    output_parser = "seed-coder"
    answers = (
        Answer(
            "So.<seed:tool_call>\n<function=add>\n<parameter=a>1</parameter>\n<parameter=b>2</parameter>\n"
            "</function>\n</seed:tool_call>",
            (TextDelta("So."), *ADD),
        ),
        Answer("<function=say><parameter=text>x</parameter></function>", SAY),
    )
    effort = 0.4
