"""What a chat model answers, and what it cost."""

from typing import Annotated, Self

from pydantic import Field

from pytest_trace2evolve.records.base import Record


class RequestedCall(Record):
    """A tool call as a model asked for it: `arguments` is the text it wrote, valid JSON or not."""

    id: str
    name: str
    arguments: str


MOST_TOKENS = 10**9
"""Tokens of one call that are believed: more is a mistake, and sums must fit into 64 bits."""

MOST_DOLLARS = 1e9
"""US dollars of one call that are believed."""

_Tokens = Annotated[int, Field(ge=0, le=1 << 53)]
"""Also sums, exact as a float."""


class Usage(Record):
    """Tokens of one or more calls of a model, and their cost in US dollars (None where a price is not known).

    `cached_tokens` are those of `prompt_tokens` that the endpoint had seen before.
    """

    calls: _Tokens = 1
    prompt_tokens: _Tokens = 0
    cached_tokens: _Tokens = 0
    completion_tokens: _Tokens = 0
    cost: Annotated[float, Field(ge=-1e18, le=1e18)] | None = None

    @property
    def tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Self) -> Self:
        """Both together; the cost is not known where one's is not."""
        return self.model_copy(
            update={
                "calls": self.calls + other.calls,
                "prompt_tokens": self.prompt_tokens + other.prompt_tokens,
                "cached_tokens": self.cached_tokens + other.cached_tokens,
                "completion_tokens": self.completion_tokens + other.completion_tokens,
                "cost": None if self.cost is None or other.cost is None else self.cost + other.cost,
            }
        )


NOTHING_USED = Usage(calls=0, cost=0.0)
"""What `Usage` adds up from."""


class Completion(Record):
    """One answer of a chat model; `seconds` is how long the whole exchange took, retries included.

    `cached` says that it was made earlier and taken from a store: its usage was spent then, and not again.
    """

    content: str | None = None
    tool_calls: tuple[RequestedCall, ...] = ()
    finish_reason: str | None = None
    usage: Usage = Usage()
    seconds: float = 0.0
    cached: bool = False
