"""Prompts for a model that writes the environment of a capability, and the parser of the model's answer."""

import importlib.resources
import json
import re
from collections.abc import Sequence
from typing import Any

from pytest_trace2evolve.judges.capabilities import render_conversation
from pytest_trace2evolve.records.capability import Capability
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import ToolSchema

PROMPT_VERSION = "2"
"""The version of `environments.md`, which is stored with every module. Increment it when the file changes."""

_CODE_BLOCK_PATTERN = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def synthesis_messages(
    capability: Capability,
    policy: str,
    tools: Sequence[ToolSchema],
    tables: dict[str, Any],
    failures: Sequence[tuple[str, Sequence[Message]]],
) -> list[dict[str, str]]:
    """The first request, with the policy, the tools and sample records (`tables`) of the target world.

    `failures` holds traces that lack the capability, each after the reason for its label.
    """
    instruction = importlib.resources.files("pytest_trace2evolve.judges") / "environments.md"
    parts = [
        f"<capability>\n{capability.name}: {capability.description}\n</capability>",
        f"<policy>\n{policy}\n</policy>",
        f"<tools>\n{json.dumps([tool.model_dump() for tool in tools])}\n</tools>",
        f"<sample_records>\n{json.dumps(tables)}\n</sample_records>",
    ]
    parts += [
        f'<conversation lacking="{reason}">\n{render_conversation(trace)}\n</conversation>'
        for reason, trace in failures
    ]
    return [
        {"role": "system", "content": instruction.read_text(encoding="utf-8")},
        {"role": "user", "content": "\n\n".join(parts)},
    ]


def revision_messages(source: str, problems: Sequence[str]) -> list[dict[str, str]]:
    """The messages that a later round adds: the last module and its problems."""
    problem_list = "\n".join(f"- {problem}" for problem in problems)
    return [
        {"role": "assistant", "content": f"```python\n{source}\n```"},
        {
            "role": "user",
            "content": f"The module was tried, and this was found:\n{problem_list}\n\n"
            "Answer with the whole mended module.",
        },
    ]


def read_module(content: str | None) -> str:
    """Return the module in an answer; empty if there is no module.

    The module is the longest code block, or else the whole answer if it defines a scenario.
    """
    text = (content or "").replace("\r\n", "\n").replace("\r", "\n")
    blocks = _CODE_BLOCK_PATTERN.findall(text)
    source = max(blocks, key=len) if blocks else (text if "def scenario" in text else "")
    return f"{source.strip()}\n" if source.strip() else ""
