"""Sandboxes with layers taken off, for tests: what one layer holds is seen only where the others are gone."""

import re

from pytest_trace2evolve.environments.sandbox.box import Limits, Sandbox
from pytest_trace2evolve.environments.sandbox.jail import Jail

CHILD = "import builtins, unicodedata; from pytest_trace2evolve.environments.sandbox import child, views"
BARE = "views.preload = dict; views.namespace = lambda known: {'__builtins__': builtins}"
OPEN = "child.lock = lambda *given: False"

QUICK = Limits(seconds=5.0)


def _imports(source: str) -> list[str]:
    """What a source imports at its top: loaded before the lock, so that its calls are what is tried."""
    return [
        f"import {names}"
        for names in re.findall(r"(?m)^(?:import|from) ([\w, ]+?)(?: import .*| as .*)?$", source)
    ]


class _Opened(Sandbox):
    """A sandbox that asks no rules; `before` says what its child changes before its main."""

    before: tuple[str, ...] = ()

    def __init__(self, source: str, limits: Limits = QUICK, loads: str = "") -> None:
        self._loads = _imports(loads or source)
        super().__init__(source, "attempt", limits)

    def _check(self, source: str) -> None:
        """Nothing is refused."""

    def _start(self) -> Jail:
        limits = self._limits
        main = "; ".join((CHILD, *self._loads, *self.before, "child.main()"))
        return Jail(limits.memory_mib << 20, limits.cpu_seconds, limits.answer_bytes, main)


class Viewed(_Opened):
    """No rules; the builtins and modules are the listed ones, and the lock holds."""


class Locked(_Opened):
    """No rules and all of Python: the lock alone holds."""

    before = (BARE,)


class Unlocked(_Opened):
    """Nothing holds. Only for attempts whose harm is harmless: it shows that they do one."""

    before = (BARE, OPEN)
