"""The scripted user of written tasks: reactions in five domains, and laws for any agent and any script."""

from pytest_trace2evolve.records.message import GREETING, STOP_MARK, Message
from pytest_trace2evolve.users.slots import TRANSFER, SlotUser
from tests.users.slot_messages import SCRIPTS


def reaction(domain: str, text: str) -> str:
    """The kind of the user's answer to an agent's first message."""
    script = SCRIPTS[domain]
    trace = [
        Message(role="assistant", content=GREETING),
        Message(role="user", content=script.opening),
        Message(role="assistant", content=text),
    ]
    answer = SlotUser(script).reply(trace).content or ""
    if answer == TRANSFER:
        return "transfer"
    if STOP_MARK in answer:
        return "end"
    facts = [name for name, value in script.knows.items() if f"{name.replace('_', ' ')}: {value}" in answer]
    if facts:
        return " ".join(facts)
    starts = {
        "Yes": "yes",
        "No": "no",
        "Are you sure": "insist",
        "I do not know": "unknown",
        "All right": "wait",
    }
    kinds = [kind for start, kind in starts.items() if answer.startswith(start)]
    return kinds[0] if kinds else "goal" if script.goal in answer else answer
