"""The whole state of a session as text, for comparisons."""

from typing import Any

from pydantic import BaseModel

from pytest_trace2evolve.worlds.copy_on_write import OverlayDatabase, fingerprint


def text_of(database: Any) -> str:
    """The text that tau2 would hash for a database, seen through overlays or as it is."""
    if isinstance(database, OverlayDatabase | BaseModel):
        return "".join(f"{field}={text_of(value)}\n" for field, value in sorted(vars(database).items()))
    return fingerprint(database)


def state_of(session: Any) -> list[str]:
    """The databases of both sides."""
    return [text_of(toolkit.db) for toolkit in (session.agent, session.user) if toolkit is not None]
