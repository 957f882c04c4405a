"""Identity of code: which edits of a project change it, and which do not."""

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_trace2evolve.evidence.code_files import MAX_DATA_FILES
from pytest_trace2evolve.evidence.identity import code_of
from pytest_trace2evolve.records.evidence import Code, Settings, code_differences

FILES = {
    "shop/__init__.py": "",
    "shop/bot.py": '''
"""A bot."""
import json
from pathlib import Path

import yaml

from . import words
from .plan import steps

PROMPT = Path(__file__).parent / "texts" / "prompt.md"
NOTES = Path(__file__).with_name("notes.txt")


class Bot:
    def respond(self):
        from shop.lazy import late

        return steps(), words.GREETING, late()


def make(*arguments):
    return Bot()
''',
    "shop/plan.py": "from shop.deep import bottom\n\n\ndef steps():\n    return bottom()\n",
    "shop/deep.py": "def bottom():\n    return 1\n",
    "shop/words.py": 'GREETING = "Hello."\n',
    "shop/lazy.py": """
import importlib

plug = importlib.import_module("shop.plugin")


def late():
    return 1
""",
    "shop/plugin.py": "VALUE = 1\n",
    "shop/unused.py": "VALUE = 1\n",
    "shop/texts/prompt.md": "Be kind.",
    "shop/texts/other.md": "Be brief.",
    "shop/notes.txt": "A note.",
    "shop/shared.py": """
from shop.fees import FEE
from shop.guests import Guest
from shop.words import GREETING

LIMIT = 3


def helper():
    return LIMIT


class World:
    def tool(self):
        return helper() + FEE


class Talker:
    def respond(self):
        return Guest(), GREETING


def open_world(domain):
    return World()


REGISTRY = {}
REGISTRY["a"] = 1
""",
    "shop/fees.py": "FEE = 2\n",
    "shop/guests.py": "class Guest:\n    pass\n",
}


class Shop:
    """A package in a temporary folder, imported anew after each edit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, (name, old)
        self.write(name, text.replace(old, new))

    def load(self, name: str) -> ModuleType:
        for known in [known for known in sys.modules if known.partition(".")[0] == "shop"]:
            del sys.modules[known]
        return importlib.import_module(name)

    def agent(self) -> Code:
        return code_of(self.load("shop.bot").make)

    def agent_of(self, module: str) -> Code:
        return code_of(self.load(module).make)

    def world(self) -> Code:
        return code_of(self.load("shop.shared").open_world, only_referenced=True)

    def user(self) -> Code:
        return code_of(self.load("shop.shared").Talker, only_referenced=True)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Shop(tmp_path)
    for known in [known for known in sys.modules if known.partition(".")[0] == "shop"]:
        del sys.modules[known]


def test_an_agent_is_its_module_and_all_that_it_imports_and_reads(shop: Shop) -> None:
    code = shop.agent()
    assert sorted(code.files) == [
        "(factory)",
        "shop/__init__.py",
        "shop/bot.py",
        "shop/deep.py",
        "shop/lazy.py",
        "shop/notes.txt",
        "shop/plan.py",
        "shop/plugin.py",
        "shop/texts/prompt.md",
        "shop/words.py",
    ]
    assert list(code.distributions) == ["PyYAML"]
    assert code.digest is not None


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("shop/bot.py", "return Bot()", "return None"),
        ("shop/plan.py", "return bottom()", "return 0"),
        ("shop/deep.py", "return 1", "return 2"),
        ("shop/words.py", "Hello.", "Hi."),
        ("shop/lazy.py", "return 1", "return 2"),
        ("shop/plugin.py", "VALUE = 1", "VALUE = 2"),
        ("shop/texts/prompt.md", "kind", "rude"),
        ("shop/notes.txt", "note", "remark"),
    ],
)
def test_an_edit_behind_an_agent_changes_it_and_is_named(shop: Shop, name: str, old: str, new: str) -> None:
    before = shop.agent()
    shop.edit(name, old, new)
    after = shop.agent()
    assert before.digest != after.digest
    assert list(code_differences(before, after)) == [name]


@pytest.mark.parametrize("name", ["shop/unused.py", "shop/texts/other.md", "shop/fees.py"])
def test_an_edit_elsewhere_changes_no_agent(shop: Shop, name: str) -> None:
    before = shop.agent()
    shop.write(name, "# edited\n")
    assert shop.agent() == before


@pytest.mark.parametrize(
    ("name", "old", "new", "changed"),
    [
        ("shop/shared.py", "return helper() + FEE", "raise ValueError", "world"),
        ("shop/shared.py", "return LIMIT", "return 0", "world"),
        ("shop/shared.py", "LIMIT = 3", "LIMIT = 4", "world"),
        ("shop/fees.py", "FEE = 2", "FEE = 9", "world"),
        ("shop/shared.py", "return World()", "return None", "world"),
        ("shop/shared.py", "return Guest(), GREETING", "return None", "user"),
        ("shop/guests.py", "pass", "fee = 1", "user"),
        ("shop/words.py", "Hello.", "Hi.", "user"),
        ("shop/shared.py", 'REGISTRY["a"] = 1', 'REGISTRY["a"] = 2', "both"),
    ],
)
def test_parts_of_one_file_are_told_apart(shop: Shop, name: str, old: str, new: str, changed: str) -> None:
    before = shop.world(), shop.user()
    shop.edit(name, old, new)
    after = shop.world(), shop.user()
    assert (before[0] != after[0], before[1] != after[1]) == (changed != "user", changed != "world")


def test_a_module_that_looks_names_up_counts_as_a_whole(shop: Shop) -> None:
    shop.edit("shop/shared.py", "return helper() + FEE", 'return globals()["helper"]() + FEE')
    before = shop.world()
    shop.edit("shop/shared.py", "return Guest(), GREETING", "return None")
    assert shop.world() != before


REGISTRY = """
TOOLS = {}


def tool(function):
    TOOLS[function.__name__] = function
    return function
"""
REGISTERED = """
import functools
from shop.registry import tool


@tool
def cancel():
    return 1


@functools.cache
def unrelated():
    return 2
"""


def test_a_decorator_of_the_same_file_registers(shop: Shop) -> None:
    shop.write("shop/tools.py", REGISTRY + REGISTERED.replace("from shop.registry import tool", ""))
    shop.edit("shop/shared.py", "LIMIT = 3", "from shop.tools import TOOLS\n\nLIMIT = 3")
    shop.edit("shop/shared.py", "return helper() + FEE", 'return TOOLS["cancel"]()')
    before = shop.world()
    shop.edit("shop/tools.py", "return 2", "return 3")
    assert shop.world() == before
    shop.edit("shop/tools.py", "return 1", "return 0")
    assert list(code_differences(before, shop.world())) == ["shop/tools.py"]


OPENING = """
class Opener:
    def __init__(self, inner):
        self.inner, self.lock = inner, object()


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = inner
"""


@pytest.mark.parametrize(
    "opener", ["functools.cache(open_world)", "Opener(open_world)", "Slotted(open_world)"]
)
def test_a_function_that_a_factory_holds_counts(shop: Shop, opener: str) -> None:
    shop.write("shop/opening.py", OPENING)

    def code() -> Code:
        world, opening = shop.load("shop.shared"), importlib.import_module("shop.opening")
        names = {"functools": functools, "open_world": world.open_world, **vars(opening)}
        return code_of(eval(opener, names), only_referenced=True)

    before = code()
    shop.edit("shop/fees.py", "FEE = 2", "FEE = 9")
    assert list(code_differences(before, code())) == ["shop/fees.py"]


def test_a_module_of_the_project_with_the_name_of_a_standard_one_counts(shop: Shop) -> None:
    assert "this" not in sys.modules
    shop.edit("shop/plan.py", "from shop.deep import bottom", "from this import bottom")
    shop.write("this.py", "def bottom():\n    return 1\n")
    before = shop.agent()
    shop.edit("this.py", "return 1", "return 2")
    del sys.modules["this"]
    assert list(code_differences(before, shop.agent())) == ["this.py"]
    del sys.modules["this"]


def test_a_comment_next_to_a_definition_changes_no_part(shop: Shop) -> None:
    before = shop.world()
    shop.edit("shop/shared.py", "class Talker:", "# A comment.\nclass Talker:")
    assert shop.world() == before


@pytest.mark.parametrize(
    ("files", "entry", "edited"),
    [
        pytest.param(
            {
                "w.py": f"{REGISTRY}\n@tool\ndef cancel():\n    return 1\n\n\nclass World:\n"
                "    tools = TOOLS\n"
            },
            "w:World",
            "w.py",
            id="a decorator enters a tool in a table",
        ),
        pytest.param(
            {
                "registry.py": REGISTRY,
                "tools.py": "from shop.registry import tool\n\n\n@tool\ndef cancel():\n    return 1\n",
                "w.py": "import shop.tools\nfrom x.registry import TOOLS\n\n\nclass World:\n"
                "    tools = TOOLS\n",
            },
            "w:World",
            "tools.py",
            id="an import enters tools in a table",
        ),
        pytest.param(
            {
                "w.py": "class Tool:\n    pass\n\n\nclass Cancel(Tool):\n    fee = 1\n\n\n"
                "class World:\n    tools = Tool.__subclasses__()\n"
            },
            "w:World",
            "w.py",
            id="a table of subclasses",
        ),
        pytest.param(
            {
                "base.py": "TOOLS = {}\n\n\nclass Tool:\n    def __init_subclass__(cls):\n"
                "        TOOLS[cls.__name__] = cls\n",
                "tools.py": "from shop.base import Tool, TOOLS\n\n\nclass Cancel(Tool):\n    fee = 1\n",
                "w.py": "from shop.tools import TOOLS\n\n\nclass World:\n    tools = TOOLS\n",
            },
            "w:World",
            "tools.py",
            id="a subclass of another module's class enters itself in a table",
        ),
        pytest.param(
            {"w.py": '"""Policy: 1."""\n\n\nclass World:\n    policy = __doc__\n'},
            "w:World",
            "w.py",
            id="the docstring of a module",
        ),
        pytest.param(
            {"w.py": "FEE = 0\nif __name__ == 'shop.w':\n    FEE = 1\n\n\nclass World:\n    fee = FEE\n"},
            "w:World",
            "w.py",
            id="a module that asks for its name",
        ),
        pytest.param(
            {
                "w.py": "import sys\n\n\ndef tool_a():\n    return 1\n\n\nclass World:\n"
                "    tools = getattr(sys.modules[__name__], 'tool_a')\n"
            },
            "w:World",
            "w.py",
            id="a module that finds itself",
        ),
        pytest.param(
            {
                "w.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    FEE: int\n"
                "else:\n    FEE = 1\n"
                "\n\nclass World:\n    fee = FEE\n"
            },
            "w:World",
            "w.py",
            id="what runs where no type checker does",
        ),
        pytest.param(
            {"w.py": "RULE = 'a\u2028b'\n\x0c\n\nclass World:\n    name = 'world'\n    fee = 1\n"},
            "w:World",
            "w.py",
            id="a form feed",
        ),
        pytest.param(
            {
                "deco.py": "import functools\n\n\ndef deco(function):\n    @functools.wraps(function)\n"
                "    def inner():\n        return function(), 1\n\n    return inner\n",
                "w.py": "from shop.deco import deco\n\n\n@deco\ndef make():\n    return 2\n",
            },
            "w:make",
            "deco.py",
            id="a decorator of another module",
        ),
        pytest.param(
            {
                "lib.py": "import dataclasses\nimport pathlib\n\n\n@dataclasses.dataclass\n"
                "class Model:\n    heat: int\n"
                "\n\nclass Maker:\n    def __init__(self, model):\n        self.model = model\n"
                "        self.folder = pathlib.Path('x')\n\n    def __call__(self):\n"
                "        return self.model\n",
                "w.py": "import shop.lib\n\nmake = shop.lib.Maker(shop.lib.Model(1))\n",
            },
            "w:make",
            "w.py",
            id="a factory that holds more than data",
        ),
    ],
)
def test_an_edit_behind_an_indirection_changes_a_part(
    shop: Shop, files: dict[str, str], entry: str, edited: str
) -> None:
    for name, text in files.items():
        shop.write(f"shop/{name}", text.replace("x.registry", "shop.registry"))
    module, _, symbol = entry.partition(":")

    def code() -> Code:
        return code_of(getattr(shop.load(f"shop.{module}"), symbol), only_referenced=True)

    before = code()
    shop.edit(f"shop/{edited}", *((" = 1", " = 3") if " = 1" in files[edited] else ("1", "3")))
    after = code()
    assert not before.unknown
    assert before != after


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("open(f'texts/{1}.md')", "texts/a.md"),
        ("HERE / f'texts/{1}.md'", "shop/texts/a.md"),
        ("open('texts/{}.md'.format(1))", "texts/a.md"),
        ("os.path.join(FOLDER, str(1))", "texts/a.md"),
        ("FileSystemLoader('texts')", "texts/a.md"),
        ("PackageLoader('shop')", "shop/templates/a.md"),
        ("files('shop.inner').joinpath('a.md')", "shop/inner/a.md"),
        ("HERE / 'PROMPT'", "shop/PROMPT"),
        ("HERE / 'bot (v2), new.md'", "shop/bot (v2), new.md"),
        ("Path(__file__).with_suffix('.md')", "shop/reader.md"),
        ("run([sys.executable, HERE / 'worker.py'])", "shop/worker.py"),
        ("run([sys.executable, '-m', 'shop.worker'])", "shop/worker.py"),
        ("import_module('.worker', __package__)", "shop/worker.py"),
        ("run_module('shop.worker')", "shop/worker.py"),
        ("open(f'{HERE}/prompt.md')", "shop/prompt.md"),
        ("open(HERE + '/prompt.md')", "shop/prompt.md"),
        ("open('%s/prompt.md' % HERE)", "shop/prompt.md"),
        ("open('{}/prompt.md'.format(HERE))", "shop/prompt.md"),
        ("open(f'{HERE}/texts/{1}.md')", "shop/texts/a.md"),
        ("open(HERE + '/texts/' + str(1))", "shop/texts/a.md"),
        ("Path(__file__).with_name('PROMPT')", "shop/PROMPT"),
        ("HERE.glob('texts/*.md')", "shop/texts/a.md"),
        ("glob(join(HERE, 'texts', '*.md'))", "shop/texts/a.md"),
        ("Path(__file__).parent.glob('*.md')", "shop/a.md"),
        ("glob.glob(join(dirname(__file__), '*.md'))", "shop/a.md"),
        ("listdir(dirname(__file__))", "shop/a.md"),
        ("OWN.iterdir()", "shop/a.md"),
        ("HERE / 'texts' / NAME", "shop/texts/results/a.md"),
    ],
)
def test_a_file_that_the_code_names_counts(shop: Shop, text: str, name: str) -> None:
    head = "from pathlib import Path\n\nFOLDER = 'texts'\nOWN = Path(__file__).parent\n"
    shop.write("shop/reader.py", f"{head}\n\ndef make():\n    return {text}\n")
    shop.write(name, "'one'")
    before = code_of(shop.load("shop.reader").make)
    shop.write(name, "'other'")
    assert list(code_differences(before, code_of(shop.load("shop.reader").make))) == [name]


def test_a_linked_folder_of_data_counts(shop: Shop) -> None:
    shop.write("shop/reader.py", "def make():\n    return HERE / 'texts' / NAME\n")
    shop.write("elsewhere/a.md", "one")
    (shop.root / "shop/texts/more").symlink_to(shop.root / "elsewhere")
    (shop.root / "elsewhere/back").symlink_to(shop.root / "shop/texts")
    before = code_of(shop.load("shop.reader").make)
    shop.write("elsewhere/a.md", "other")
    assert list(code_differences(before, code_of(shop.load("shop.reader").make))) == ["elsewhere/a.md"]


@pytest.mark.parametrize("wrap", [lambda function: function, property, staticmethod])
def test_a_method_that_another_module_replaces_counts(shop: Shop, wrap: Callable[[Any], Any]) -> None:
    def code(fee: int) -> Code:
        shop.write("shop/patch.py", f"def fee(*_):\n    return {fee}\n")
        patch = shop.load("shop.patch")
        world = importlib.import_module("shop.shared").World
        world.tool = wrap(patch.fee)
        return code_of(world, only_referenced=True)

    assert list(code_differences(code(1), code(2))) == ["shop/patch.py"]


def test_a_path_outside_the_project_is_not_read(shop: Shop) -> None:
    shop.write("shop/reader.py", "def make():\n    return open('/etc/hosts'), join(HERE, '..'), open('/')\n")
    assert sorted(shop.agent_of("shop.reader").files) == ["(factory)", "shop/__init__.py", "shop/reader.py"]


def test_data_of_a_source_layout_lies_at_the_root_of_the_project(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(shop.root / "src")
    shop.write("pyproject.toml", "")
    (shop.root / "shop").rename(shop.root / "package")
    shop.write("src/shop/__init__.py", "")
    shop.write("src/shop/reader.py", "def make():\n    return ROOT / 'prompts' / NAME\n")
    for version in "ab":
        shop.write(f"prompts/{version}/system.md", "Be kind.")
    before = shop.agent_of("shop.reader")
    shop.write("prompts/a/system.md", "Be rude.")
    assert list(code_differences(before, shop.agent_of("shop.reader"))) == ["prompts/a/system.md"]


def test_a_namespace_package_is_followed_before_it_is_imported(shop: Shop) -> None:
    shop.write("shopspace/inner/late.py", "FEE = 1\n")
    shop.write("shop/reader.py", "def make():\n    from shopspace.inner.late import FEE\n\n    return FEE\n")
    assert "shopspace/inner/late.py" in shop.agent_of("shop.reader").files


def test_two_files_of_one_key_both_count(tmp_path: Path) -> None:
    spaces = []
    for folder in ("one", "other"):
        path = tmp_path / folder / "conftest.py"
        path.parent.mkdir()
        path.write_text("def make():\n    return 1\n", encoding="utf-8")
        spaces.append({"__name__": "conftest", "__file__": str(path)})
        exec(compile(path.read_text(), str(path), "exec"), spaces[-1])
    before = code_of(*(space["make"] for space in spaces))
    for space in spaces:
        path = Path(str(space["__file__"]))
        path.write_text("def make():\n    return 2\n", encoding="utf-8")
        assert code_of(*(one["make"] for one in spaces)) != before
        path.write_text("def make():\n    return 1\n", encoding="utf-8")
    assert code_of(*(space["make"] for space in spaces)) == before


class Hostile:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def held(value: object) -> object:
    return value


class Method:
    def fingerprint(self) -> str:
        return "1"


@pytest.mark.parametrize("make", [Hostile, lambda: Method, lambda: functools.partial(print, {Hostile()})])
def test_an_object_that_raises_is_unknown(make: Callable[[], object]) -> None:
    assert code_of(make()).unknown


def test_a_large_object_is_identified_in_linear_time() -> None:
    rows = [{"key": object(), "value": [number]} for number in range(5_000)]
    assert code_of(functools.partial(held, rows)).digest is not None


def test_equal_arguments_are_told_apart_by_their_number() -> None:
    assert code_of(functools.partial(held, [1, 1])) != code_of(functools.partial(held, [1]))


def test_a_path_that_a_factory_holds_is_the_same_in_every_folder(tmp_path: Path) -> None:
    codes = []
    for folder in ("one", "other"):
        path = tmp_path / folder / "data.json"
        path.parent.mkdir()
        path.write_text("{}", encoding="utf-8")
        codes += [code_of(functools.partial(held, path)), code_of(functools.partial(held, str(path)))]
    assert codes[0] == codes[2]
    assert codes[1] == codes[3]
    assert "data.json" in codes[0].files


def made(prompt: str) -> Callable[[], str]:
    def factory() -> str:
        return prompt

    return factory


def with_default(prompt: str = "a") -> str:
    return prompt


def other_default(prompt: str = "b") -> str:
    return prompt


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (functools.partial(made, prompt="a"), functools.partial(made, prompt="b")),
        (made("a"), made("b")),
        (made("a"), functools.partial(made, "a")),
        (with_default, other_default),
    ],
)
def test_what_a_factory_holds_counts(one: Any, other: Any) -> None:
    assert code_of(one).digest != code_of(other).digest
    assert code_of(one) == code_of(one)


def test_a_fingerprint_stands_for_the_code() -> None:
    def factory() -> None: ...

    text = "version 1"
    factory.fingerprint = text  # type: ignore[attr-defined]  # how a factory declares one
    assert code_of(factory) == Code(fingerprint=text)
    factory.fingerprint = lambda: text  # type: ignore[attr-defined]  # as above
    assert code_of(factory, Code) == Code(fingerprint=text)


def test_a_fingerprint_is_not_inherited() -> None:
    class Base:
        fingerprint = "base 1"

    class Broken(Base):
        def tool(self) -> None:
            raise ValueError

    assert code_of(Base).fingerprint == "base 1"
    assert code_of(Broken).fingerprint is None


def test_code_without_a_source_is_unknown() -> None:
    space: dict[str, Any] = {"__name__": "nowhere"}
    exec("def make(): ...", space)
    code = code_of(space["make"])
    assert code.unknown
    assert code.digest is None


def test_source_that_cannot_be_parsed_is_unknown(shop: Shop) -> None:
    make = shop.load("shop.bot").make
    shop.write("shop/deep.py", "def bottom(:\n")
    assert "invalid syntax" in code_of(make).unknown


def test_a_folder_with_too_many_files_is_unknown(shop: Shop) -> None:
    shop.edit("shop/bot.py", '"texts" / "prompt.md"', '"texts" / str(1)')
    assert "shop/texts/other.md" in shop.agent().files
    for number in range(MAX_DATA_FILES):
        shop.write(f"shop/texts/{number}.md", "")
    assert shop.agent().unknown == (
        f"texts/ contains {MAX_DATA_FILES + 2} files, more than {MAX_DATA_FILES}; declare a fingerprint"
    )


def test_unknown_code_shows_no_difference() -> None:
    known = Code(files={"a.py": "1"})
    assert list(code_differences(known, Code(unknown="no source"))) == []
    assert list(code_differences(None, known)) == []
    assert list(code_differences(known, Code(fingerprint="2"))) == ["fingerprint None and '2'"]


def test_settings_without_code_keep_their_form() -> None:
    assert Settings(implementation="chat").model_dump(mode="json") == {
        "implementation": "chat",
        "model": None,
        "arguments": None,
        "guidelines": None,
    }
    settings = Settings(implementation="bot", code=Code(files={"a.py": "1"}))
    assert Settings.model_validate(settings.model_dump(mode="json")) == settings
