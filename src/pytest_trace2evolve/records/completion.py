"""What a chat model answers, and what it cost."""

from pytest_trace2evolve.records.base import Record


class RequestedCall(Record):
    """A tool call as a model asked for it: `arguments` is the text it wrote, valid JSON or not."""

    id: str
    name: str
    arguments: str


class Usage(Record):
    """Tokens of one or more completions, and their cost in US dollars (None where no price is known)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None


class Completion(Record):
    """One answer of a chat model; `seconds` is how long the whole exchange took, retries included."""

    content: str | None = None
    tool_calls: tuple[RequestedCall, ...] = ()
    finish_reason: str | None = None
    usage: Usage = Usage()
    seconds: float = 0.0
