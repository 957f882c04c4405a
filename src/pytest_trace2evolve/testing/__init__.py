"""Test doubles for users of this package: an OpenAI-compatible server with scripted answers.

    from pytest_trace2evolve.testing import ChatServer, Reply

    with ChatServer(lambda request: Reply("Hello.")) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="any")

The server listens on loopback and answers chat completions and the model list. It misbehaves on demand:
latency, error statuses, rate limits, broken bodies, hang-ups, slow answers.
"""

from pytest_trace2evolve.testing.scripts import case_script, gold_script
from pytest_trace2evolve.testing.server import (
    ChatRequest,
    ChatServer,
    Count,
    Fault,
    FaultPlan,
    Misbehaviour,
    Reply,
    Script,
)

__all__ = [
    "ChatRequest",
    "ChatServer",
    "Count",
    "Fault",
    "FaultPlan",
    "Misbehaviour",
    "Reply",
    "Script",
    "case_script",
    "gold_script",
]
