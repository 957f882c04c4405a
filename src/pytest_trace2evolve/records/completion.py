"""What a chat model answers, and what it cost."""

from typing import Self

from pydantic import Field

from pytest_trace2evolve.records.base import Record


class RequestedCall(Record):
    """A tool call as a model asked for it: `arguments` is the text it wrote, valid JSON or not."""

    id: str
    name: str
    arguments: str


class Usage(Record):
    """Tokens of one or more calls of a model, and their cost in US dollars (None where a price is not known).

    `cached_tokens` are those of `prompt_tokens` that the endpoint had seen before.
    """

    calls: int = Field(default=1, ge=0)
    prompt_tokens: int = Field(default=0, ge=0)
    cached_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)
    cost: float | None = None

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
