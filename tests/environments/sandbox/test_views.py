"""What the running code sees, with the rules off: no name, module or library function leads further."""

from collections.abc import Iterator
from textwrap import indent

import pytest

from pytest_trace2evolve.environments.sandbox.box import Sandbox, isolation_problem
from pytest_trace2evolve.environments.sandbox.rules import check_rules
from pytest_trace2evolve.errors import GeneratedCodeError, SourceRefusedError
from tests.environments.sandbox.layers import PATIENT, WithoutRules

pytestmark = pytest.mark.skipif(bool(isolation_problem()), reason=isolation_problem())

INJECTED = "a=[c for c in ().__class__.__mro__[1].__subclasses__()]"
"""A name of a field that is code: it ran when it came into the source that the library makes."""

TRIED = {
    "open": ("open('x')", "NameError: name 'open' is not defined"),
    "import": ("__import__('os')", "ImportError: 'os' is not available; allowed are __future__, collections"),
    "import of what C loads": (
        "__import__('time').sleep",
        "AttributeError: module 'time' has no attribute 'sleep'",
    ),
    "a relative import": (
        "__import__('random', {}, {}, ('x',), 1)",
        "ImportError: 'random' is not available",
    ),
    "a module in a variable": (
        "[json, 1][0].codecs",
        "AttributeError: module 'json' has no attribute 'codecs'",
    ),
    "a module's own modules": ("random._os", "AttributeError: module 'random' has no attribute '_os'"),
    "a module's loader": ("json.__loader__", "AttributeError"),
    "a submodule": ("collections.abc.sys", "AttributeError"),
    "a class by its text": ("enum.Enum('E', {'__getattr__': print})", "an Enum must be written as a class"),
    "a renamed field": (
        f"rename(field, {INJECTED!r})",
        "TypeError: a field's name must be a public identifier",
    ),
    "a private field": (
        "rename(field, '__class__')",
        "TypeError: a field's name must be a public identifier",
    ),
    "a field that is text": (
        "rename(field, Text('x'))",
        "TypeError: a field's name must be a public identifier",
    ),
    "a field that is code": (
        f"annotated({INJECTED!r})",
        "TypeError: a field's name must be a public identifier",
    ),
}

SETTING = """
import collections.abc, dataclasses, enum, json, random

class Text(str):
    def isidentifier(self):
        return True

field = dataclasses.field(default=1)

@dataclasses.dataclass
class Item:
    a: int = field

def rename(field, name):
    field.name = name
    @dataclasses.dataclass
    class Heir(Item):
        b: int = 2
    return Heir().b

def annotated(name):
    class Bare:
        pass
    Bare.__annotations__ = {name: int}
    return dataclasses.dataclass(Bare)().a
"""


@pytest.fixture(scope="module")
def tries() -> Iterator[WithoutRules]:
    attacks = [f"def attack_{place}():\n    {tried}\n" for place, (tried, _) in enumerate(TRIED.values())]
    with WithoutRules(SETTING + "".join(attacks)) as box:
        yield box


@pytest.mark.parametrize("name", TRIED)
def test_it_leads_nowhere(tries: WithoutRules, name: str) -> None:
    with pytest.raises(GeneratedCodeError) as raised:
        tries.call(f"attack_{list(TRIED).index(name)}")
    assert TRIED[name][1] in str(raised.value)


CLOCKS = [
    "import datetime\ndef grade(): return datetime.datetime.now().year",
    "from datetime import datetime\ndef grade(): return datetime.now().year",
    "from datetime import datetime, UTC\ndef grade(): return datetime.now(UTC).year",
    "from datetime import datetime as d\ndef grade(): return d.utcnow().year",
    "from datetime import datetime\ndef grade(): return datetime.today().year",
    "from datetime import date\ndef grade(): return date.today().year",
    "from datetime import date\nread = date.today\ndef grade(): return read().year",
    "from datetime import date\ndef grade(): return date(2020, 1, 1).today().year",
    "from datetime import datetime\ndef grade(): return datetime(2020, 1, 1).date().today().year",
    "from datetime import datetime\nclass D(datetime):\n    pass\ndef grade(): return D.now().year",
    "from datetime import datetime\nD = datetime\ndef grade(): return list(map(D.now, [None]))[0].year",
]


@pytest.mark.parametrize("source", CLOCKS)
def test_a_source_that_reads_the_clock_is_refused(source: str) -> None:
    with pytest.raises(
        SourceRefusedError, match="it reads the clock, but a scenario must depend only on its seed"
    ):
        check_rules(source, "module")


def test_without_the_rules_there_is_no_clock_either() -> None:
    sources = [source for source in CLOCKS if ".date()" not in source]
    readers = [
        f"def read_{place}():\n{indent(source, '    ')}\n    return grade()\n"
        for place, source in enumerate(sources)
    ]
    with WithoutRules("".join(readers), loads="import datetime\n") as box:
        for place in range(len(sources)):
            with pytest.raises(
                GeneratedCodeError,
                match="the clock is not available: a scenario must depend only on its seed",
            ):
                box.call(f"read_{place}")


SEEDLESS = """
from random import Random

def without(): return Random().random()
def none(): return Random(None).random()
def again():
    drawn = Random(1)
    drawn.seed()
"""


def test_random_numbers_need_a_seed() -> None:
    with Sandbox(SEEDLESS, "module", PATIENT) as box:
        for name in ("without", "none", "again"):
            with pytest.raises(GeneratedCodeError, match="Random needs a seed"):
                box.call(name)
