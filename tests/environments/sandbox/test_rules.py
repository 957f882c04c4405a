"""The rules by themselves: ordinary code passes, odd code is rejected in a line, at any size."""

import pytest

from pytest_trace2evolve.environments.sandbox.rules import MAX_BYTES, check_rules
from pytest_trace2evolve.errors import SourceRefusedError

FAIR = '''
"""A generator as a model writes it."""
from __future__ import annotations

import collections.abc
import json
import math as m
import random
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

_NAMES = ("Ann", "Zoë")


class Size(Enum):
    SMALL = "s"


class Point(NamedTuple):
    x: int


@dataclass(order=True)
class Order:
    id: str
    type: str = "order"
    items: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.count = len(self.items)

    @property
    def label(self) -> str:
        return f"{self.id!r:>10} of {self.count:,}"


class Special(Order):
    def __init__(self, id: str) -> None:
        super().__init__(id)


def _pick(rng: random.Random, *names: str, **more: Any) -> str:
    return rng.choice([*names, *more])


def scenario(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    total = 0
    for _ in range(3):
        total += m.floor(rng.uniform(0, 9)) if rng else 0
    while (total := total - 1) > 0:
        if total == 5:
            continue
    try:
        assert isinstance(total, collections.abc.Hashable), "odd"
    except (ValueError, AssertionError) as error:
        raise RuntimeError("no") from error
    finally:
        total = 0
    made = {name: {len(name)} for name in _NAMES if name}
    return {"text": json.dumps([*made]), "sum": sum(i for i in (1, 2)), "key": lambda x: -x[1:2]}
'''


def test_what_people_write_passes() -> None:
    check_rules(FAIR, "fair")


REFUSED = {
    "a private attribute": ("x = (1).__class__", "line 1: the attribute `__class__` is not allowed"),
    "one underscore": ("x = 1\ny = x._private", "line 2: the attribute `_private`"),
    "another init": ("x = 1\nx.__init__()", "line 2: the attribute `__init__`"),
    "super of another": ("super(int, 1).__init__()", "`__init__`"),
    "a special method": ("class A:\n    def __eq__(self, other): return True", "line 2: `__eq__`"),
    "a hidden keyword": ("print(__x=1)", "`__x`"),
    "a hidden argument": ("def f(__x): pass", "`__x`"),
    "a hidden exception": ("try:\n    pass\nexcept ValueError as __e:\n    pass", "line 3: `__e`"),
    "a hidden alias": ("import json as __builtins__", "`__builtins__`"),
    "a hidden alias of a name": ("from json import dumps as __build_class__", "`__build_class__`"),
    "a hidden class": ("class __A: pass", "`__A`"),
    "slots": ("class A:\n    __slots__ = ()", "`__slots__`"),
    "a relative import": ("from . import x", "`.` must not be imported"),
    "a package's part": ("import json.decoder", "`json.decoder` must not be imported"),
    "a part by another name": ("import collections.abc as c\nc.sys", "`collections.abc.sys`"),
    "a module changed": ("import json\njson.dumps = 1", "`json.dumps` must not be changed"),
    "a module emptied": ("import json\ndel json.dumps", "`json.dumps` must not be changed"),
    "chance without a seed": (
        "import random\nrandom.random()",
        "`random.random` is not allowed; allowed are Random",
    ),
    "a clock": ("import time", "`time` must not be imported"),
    "global": ("def f():\n    global x", "line 2: `Global`"),
    "with": ("with x: pass", "`With`"),
    "star": ("from json import *", "`json.*`"),
    "an unknown name": ("print(os)", "`os` is not allowed and is not defined"),
    "mro": ("x = int.mro()", "`mro`"),
    "an exception's object": ("def f(e): return e.obj", "`obj`"),
    "a class's keywords": ("class A(**{}): pass", "keyword `**` of a class"),
    "no Python": ("x = = 1", "line 1: invalid Python: invalid syntax"),
    "a stray return": ("x = 1\nreturn x", "line 2: invalid Python: 'return' outside function"),
    "a stray nonlocal": (
        "def f():\n    nonlocal x",
        "line 2: invalid Python: no binding for nonlocal 'x' found",
    ),
    "twice the same argument": ("def f(a, a): pass", "line 1: invalid Python: duplicate argument 'a'"),
    "a null byte": ("x = 1\ny = '\0'", "line 2: the invisible character U+0000"),
    "another direction": ("x = '\u202e'", "line 1: the invisible character U+202E"),
    "half of a character": ("x = '\ud800'", "half of a character"),
    "another alphabet": ("x = 1\nｘ = 2", "line 2: the name '\\uff58'"),
    "long": ("x = 1\n" * MAX_BYTES, f"the limit is {MAX_BYTES}"),
    "many nodes": ("x = [" + "1," * 25_000 + "]", "more than 20000 nodes"),
    "deep": ("x = " + "1 + " * 200 + "1", "nested more than 100 levels"),
    "brackets": ("(" * 500 + ")" * 500, "invalid Python: too many nested parentheses"),
    "blocks": (
        "\n".join(" " * i + "if 1:" for i in range(150)),
        "invalid Python: too many levels of indentation",
    ),
    "signs": ("-" * 60_000 + "1", "odd"),
    "nots": ("not " * 15_000 + "1", "odd"),
    "attributes": ("x" + ".a" * 30_000, "odd"),
    "calls": ("x" + "()" * 30_000, "odd"),
    "lambdas": ("lambda:" * 9_000 + "1", "odd"),
    "choices": ("1 if 1 else " * 5_000 + "1", "odd"),
    "powers": ("1**" * 20_000 + "1", "odd"),
    "strings of strings": ('f"{' * 300, "odd"),
}


@pytest.mark.parametrize(("source", "message"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_in_one_line(source: str, message: str) -> None:
    with pytest.raises(SourceRefusedError) as refused:
        check_rules(source, "odd")
    assert str(refused.value).startswith("odd")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 2000


def test_the_first_line_is_told_first() -> None:
    with pytest.raises(SourceRefusedError, match="line 2: `eval`"):
        check_rules("x = 1\ny = eval\nz = exec\n", "two")
