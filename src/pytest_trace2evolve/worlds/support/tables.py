"""A session's view of one table: shared rows until they are written, and the keys that were reached."""

from pytest_trace2evolve.worlds.support.store import Row, Rows


class Table:
    """Rows by key over shared rows, which it never changes.

    Attributes:
        own: The rows that this session wrote.
        reached: Keys of all rows read or written.
    """

    __slots__ = ("_shared", "own", "reached")

    def __init__(self, shared: Rows) -> None:
        self._shared = shared
        self.own: dict[str, Row] = {}
        self.reached: set[str] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._shared

    def __getitem__(self, key: str) -> Row:
        self.reached.add(key)
        return self.own.get(key) or self._shared[key]

    def writable(self, key: str) -> Row:
        """The session's own row of a key, copied at the first time."""
        if key not in self.own:
            self.own[key] = Row(dict(self[key].data))
        return self.own[key]

    def peek(self, key: str) -> Row | None:
        """The row of a key, where there is one, without reaching it."""
        return self.own.get(key) or self._shared.get(key)

    def restart(self, shared: Rows) -> None:
        """Begin anew over other shared rows; what was reached stays reached."""
        self._shared = shared
        self.own = {}
