"""The prompt for a model that writes the environment of a capability, and the reader of its answer."""

import importlib.resources
import json
import re
from collections.abc import Sequence
from typing import Any

from pytest_trace2evolve.judges.capabilities import conversation
from pytest_trace2evolve.records.capability import Capability
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import ToolSchema

PROMPT_VERSION = "1"
"""Raised whenever `environments.md` changes; kept with every module."""

_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def synthesis_messages(
    capability: Capability,
    policy: str,
    tools: Sequence[ToolSchema],
    tables: dict[str, Any],
    failures: Sequence[tuple[str, Sequence[Message]]],
) -> list[dict[str, str]]:
    """The first request, about a target's policy, tools and a sample of its records (`tables`).

    `failures` are traces that lack the capability, each with the reason.
    """
    instruction = importlib.resources.files("pytest_trace2evolve.judges") / "environments.md"
    parts = [
        f"<capability>\n{capability.name}: {capability.description}\n</capability>",
        f"<policy>\n{policy}\n</policy>",
        f"<tools>\n{json.dumps([tool.model_dump() for tool in tools])}\n</tools>",
        f"<sample_records>\n{json.dumps(tables)}\n</sample_records>",
    ]
    parts += [
        f'<conversation lacking="{why}">\n{conversation(trace)}\n</conversation>' for why, trace in failures
    ]
    return [
        {"role": "system", "content": instruction.read_text(encoding="utf-8")},
        {"role": "user", "content": "\n\n".join(parts)},
    ]


def revision_messages(source: str, problems: Sequence[str]) -> list[dict[str, str]]:
    """The further messages of a later round: the last module and its problems."""
    found = "\n".join(f"- {problem}" for problem in problems)
    return [
        {"role": "assistant", "content": f"```python\n{source}\n```"},
        {
            "role": "user",
            "content": f"The module was tried, and this was found:\n{found}\n\n"
            "Answer with the whole mended module.",
        },
    ]


def read_module(content: str | None) -> str:
    """The module in an answer: its longest code block, or the whole answer; empty if there is none."""
    text = (content or "").replace("\r\n", "\n").replace("\r", "\n")
    blocks = _FENCE.findall(text)
    found = max(blocks, key=len) if blocks else (text if "def scenario" in text else "")
    return f"{found.strip()}\n" if found.strip() else ""
