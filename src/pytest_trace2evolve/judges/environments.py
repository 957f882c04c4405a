"""How a model is asked to write the environment of a capability, and how its answer is read."""

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


def _instruction() -> str:
    """What is wanted of a module: `environments.md` beside this file."""
    folder = importlib.resources.files("pytest_trace2evolve.judges")
    return (folder / "environments.md").read_text(encoding="utf-8")


def synthesis_messages(
    capability: Capability,
    policy: str,
    tools: Sequence[ToolSchema],
    tables: dict[str, Any],
    shown: Sequence[tuple[str, Sequence[Message]]],
) -> list[dict[str, str]]:
    """What is asked first.

    Args:
        capability: What is to be trained.
        policy: The target's.
        tools: The target's.
        tables: A sample of the target's records.
        shown: Traces that lack the capability, each with why it does.
    """
    parts = [
        f"<capability>\n{capability.name}: {capability.description}\n</capability>",
        f"<policy>\n{policy}\n</policy>",
        f"<tools>\n{json.dumps([one.model_dump() for one in tools])}\n</tools>",
        f"<sample_records>\n{json.dumps(tables)}\n</sample_records>",
    ]
    parts += [
        f'<conversation lacking="{why}">\n{conversation(trace)}\n</conversation>' for why, trace in shown
    ]
    return [
        {"role": "system", "content": _instruction()},
        {"role": "user", "content": "\n\n".join(parts)},
    ]


def mending_messages(source: str, problems: Sequence[str]) -> list[dict[str, str]]:
    """What is asked in each further round: the last module, and what was found wrong with it."""
    found = "\n".join(f"- {one}" for one in problems)
    return [
        {"role": "assistant", "content": f"```python\n{source}\n```"},
        {
            "role": "user",
            "content": f"The module was tried, and this was found:\n{found}\n\n"
            "Answer with the whole mended module.",
        },
    ]


def read_module(content: str | None) -> str:
    """The module of an answer: its longest block of code, or all of it; empty where it holds none."""
    text = (content or "").replace("\r\n", "\n").replace("\r", "\n")
    blocks = _FENCE.findall(text)
    found = max(blocks, key=len) if blocks else (text if "def scenario" in text else "")
    return f"{found.strip()}\n" if found.strip() else ""
