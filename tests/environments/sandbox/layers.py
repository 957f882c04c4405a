"""Sandboxes with layers taken off, for tests: what one layer holds shows only if the others are gone."""

import re
from dataclasses import replace

from pytest_trace2evolve.environments.sandbox.box import Limits, Sandbox
from tests.patience import HANG_SECONDS

CHILD = "import builtins, unicodedata; from pytest_trace2evolve.environments.sandbox import child, views"
NO_VIEWS = "views.preload = dict; views.make_namespace = lambda known: {'__builtins__': builtins}"
NO_LOCK = "child.lock = lambda *given: False"

PATIENT = Limits(seconds=HANG_SECONDS)


def hurried(sandbox: Sandbox, seconds: float) -> Sandbox:
    """A sandbox whose further calls may take so long; loading its module may have taken longer."""
    sandbox.limits = replace(sandbox.limits, seconds=seconds)
    return sandbox


class WithoutRules(Sandbox):
    """No rules; the builtins and modules are the listed ones, and the lock holds.

    What the source, or `loads`, imports at its top is loaded before the lock, so that its calls are tried.
    """

    patches: tuple[str, ...] = ()
    """What the child changes before its main."""

    def __init__(self, source: str, limits: Limits = PATIENT, loads: str = "") -> None:
        imported = re.findall(r"(?m)^(?:import|from) ([\w, ]+?)(?: import .*| as .*)?$", loads or source)
        self.child_code = "; ".join(
            (CHILD, *(f"import {names}" for names in imported), *self.patches, "child.main()")
        )
        super().__init__(source, "attempt", limits)

    def check_source(self, source: str) -> None:
        """Nothing is rejected."""


class LockAlone(WithoutRules):
    """No rules and all of Python: the lock alone holds."""

    patches = (NO_VIEWS,)


class Unprotected(WithoutRules):
    """Nothing holds. Only for attempts whose harm is harmless: it shows that they do one."""

    patches = (NO_VIEWS, NO_LOCK)


FINE = """
import datetime, functools, itertools, json, random, re
from collections import Counter, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from fractions import Fraction

class Kind(Enum):
    A = "a"

@dataclass(order=True)
class Item:
    price: float
    name: str
    tags: list = field(default_factory=list)

count = [0]

def scenario(seed):
    print("not an answer", seed)
    rng = random.Random(seed)
    items = sorted(Item(rng.random(), f"item {i:03}") for i in range(20))
    when = datetime.datetime.strptime("2024-05-06", "%Y-%m-%d") + datetime.timedelta(days=rng.randint(0, 99))
    return {
        "names": [item.name.title() for item in items],
        "prices": {item.name: round(item.price, 3) for item in items},
        "set": list({item.name for item in items}),
        "when": f"{when:%d %B %Y}",
        "kind": Kind.A.value,
        "exact": str(Decimal("0.1") + Decimal("0.2")),
        "part": str(Fraction(1, 3)),
        "words": re.findall(r"\\\\w+", "a b"),
        "most": Counter("aab").most_common(1),
        "point": namedtuple("Point", "x y")(1, 2),
        "umlaut": "Zoë \\\\u2028 😀",
    }

def counted():
    count[0] += 1
    return count[0]

def echo(*values):
    return values

def fails(x):
    y = 1 // x
    return y
""".replace("\\\\", "\\")
"""A module that uses what an honest one may."""

LOOP = "def attack():\n    while True:\n        pass\n"
