"""What the running code sees, with the rules off: no name, module or library function leads further."""

import pytest

from pytest_trace2evolve.environments.sandbox.allowed import BUILTINS, MODULES
from pytest_trace2evolve.environments.sandbox.box import missing
from pytest_trace2evolve.errors import GeneratedCodeError
from tests.environments.sandbox.layers import WithoutRules

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

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
    "a class by its text": ("enum.Enum('E', {'__getattr__': print})", "an Enum is written as a class here"),
    "a renamed field": (f"rename(field, {INJECTED!r})", "TypeError: a field's name must be a plain name"),
    "a private field": ("rename(field, '__class__')", "TypeError: a field's name must be a plain name"),
    "a field that is text": ("rename(field, Text('x'))", "TypeError: a field's name must be a plain name"),
    "a field that is code": (f"annotated({INJECTED!r})", "TypeError: a field's name must be a plain name"),
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

def attack():
    TRIED
"""


@pytest.mark.parametrize(("tried", "told"), TRIED.values(), ids=TRIED)
def test_it_leads_nowhere(tried: str, told: str) -> None:
    source = SETTING.replace("TRIED", tried)
    with WithoutRules(source) as box, pytest.raises(GeneratedCodeError) as raised:
        box.call("attack")
    assert told in str(raised.value)


def test_all_listed_names_are_there_and_no_others() -> None:
    source = (
        "def seen(name, names):\n    one = __import__(name, {}, {}, names)\n    return sorted(vars(one))\n"
    )
    source += "def builtins():\n    return sorted(__builtins__)\nvars = lambda one: one.__dict__\n"
    with WithoutRules(source) as box:
        for name, names in MODULES.items():
            inner = {one.removeprefix(f"{name}.") for one in MODULES if one.startswith(f"{name}.")}
            assert set(box.call("seen", name, sorted(names))) == names | inner | {"__name__"}
        assert set(box.call("builtins")) == BUILTINS | {"__build_class__", "__import__"}


def test_no_listed_name_is_a_module() -> None:
    """A name that later becomes a module of its library would lead out of the list."""
    import importlib
    import types

    listed = [getattr(importlib.import_module(name), one) for name, names in MODULES.items() for one in names]
    assert len(listed) > 200
    assert not [one for one in listed if isinstance(one, types.ModuleType)]
