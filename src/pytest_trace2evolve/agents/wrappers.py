"""Runs agents of frameworks: pydantic-ai, LangGraph and the OpenAI Agents SDK.

A wrapper keeps the conversation, because the agents of these frameworks have no memory of their own. The
wrapper is chosen by the name of the object's class, so a framework is imported only if the project uses it.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from uuid import uuid4

Run = Callable[[str], str | Awaitable[str]]
"""A function that answers a message from the user."""


class PydanticAgent:
    """An agent of pydantic-ai."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._messages: list[Any] = []

    async def __call__(self, message: str) -> str:
        """Answer a message, with all earlier messages of the conversation."""
        result = await self._agent.run(message, message_history=self._messages)
        self._messages = result.all_messages()
        return str(result.output)


class LangGraphAgent:
    """A compiled graph of LangGraph whose state has `messages`, such as a prebuilt agent."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._messages: list[Any] = []
        # The checkpointer may be shared by several conversations, or stored on disk.
        self._config = {"configurable": {"thread_id": uuid4().hex}}

    async def __call__(self, message: str) -> str:
        """Answer a message. A graph with a checkpointer keeps the conversation itself."""
        earlier_messages = [] if getattr(self._graph, "checkpointer", None) else self._messages
        state = await self._graph.ainvoke(
            {"messages": [*earlier_messages, {"role": "user", "content": message}]}, config=self._config
        )
        self._messages = state["messages"]
        content = self._messages[-1].content
        if isinstance(content, list):
            parts = (part if isinstance(part, str) else part.get("text", "") for part in content)
            return "".join(parts)
        return str(content)


class OpenAIAgent:
    """An agent of the OpenAI Agents SDK."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._items: list[Any] = []

    async def __call__(self, message: str) -> str:
        """Answer a message, with all earlier items of the conversation."""
        from agents import Runner  # type: ignore[import-not-found,unused-ignore]

        result = await Runner.run(self._agent, [*self._items, {"role": "user", "content": message}])
        self._items = result.to_input_list()
        return str(result.final_output)


class _HasRun(Protocol):
    def run(self, message: str) -> str | Awaitable[str]: ...


class _RunMethod:
    """Makes an object with a method `run` callable, and passes on its method `close` if there is one."""

    def __init__(self, agent: _HasRun) -> None:
        self.run = agent.run
        if callable(close := getattr(agent, "close", None)):
            self.close = close

    def __call__(self, message: str) -> str | Awaitable[str]:
        return self.run(message)


def wrapped(agent: Any, name: str) -> Run:
    """Return a callable that answers messages, made from the object that a project's function returned.

    Args:
        agent: An agent of a framework, an object with a method `run`, or a callable.
        name: The import path of the project's function, for the error message.

    Raises:
        TypeError: the object is of a different kind.
    """
    class_names = {f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in type(agent).__mro__}
    if class_names & {"pydantic_ai.AbstractAgent", "pydantic_ai.Agent"}:
        return PydanticAgent(agent)
    if "langgraph.Pregel" in class_names:
        return LangGraphAgent(agent)
    if "agents.Agent" in class_names and hasattr(agent, "handoffs"):
        return OpenAIAgent(agent)
    if callable(getattr(agent, "run", None)):
        return _RunMethod(agent)
    if callable(agent) and not inspect.isclass(agent):
        return agent  # type: ignore[no-any-return]
    raise TypeError(
        f"{name} returned {type(agent).__name__}; return an object with run(message), a callable, or an "
        "agent of pydantic-ai, LangGraph or the OpenAI Agents SDK"
    )
