"""Identity of code: which edits of a project change it, and which do not."""

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_trace2evolve.evidence.identity import MAX_FILES, agent_code, code_of
from pytest_trace2evolve.records.evidence import FILE_IDENTITY, Code, code_differences

FILES = {
    "shop/__init__.py": "",
    "shop/bot.py": """
import json
from lib.plan import steps


class Bot:
    def respond(self):
        from lib.lazy import late

        return steps(), late()


def make(*arguments):
    return Bot()
""",
    "shop/prompt.md": "Be kind.",
    "shop/texts/computed.md": "Be brief.",
    "lib/__init__.py": "import yaml\n",
    "lib/plan.py": "def steps():\n    return 1\n",
    "lib/lazy.py": "def late():\n    return 1\n",
    "lib/unused.py": "VALUE = 1\n",
    "lib/data.json": "{}",
    "inn/world.py": '''
from pathlib import Path
from typing import TYPE_CHECKING

from inn import fees

if TYPE_CHECKING:
    from shop.bot import Bot

ROOMS = Path(__file__).parent / "rooms" / "all.json"


class World:
    def tool(self):
        """Book a room."""
        from inn.late import fee

        return fees.FEE + fee()


def open_world(domain):
    return World()
''',
    "inn/fees.py": "FEE = 2\n",
    "inn/late.py": "import inn.deep\n\n\ndef fee():\n    return 1\n",
    "inn/deep.py": "VALUE = 1\n",
    "inn/rooms/all.json": "{}",
    "inn/rooms/other.json": "{}",
    "both.py": """
import inn.fees
import inn.late
import lib.plan


def make():
    return lib.plan.steps()


class World:
    def tool(self):
        return inn.fees.FEE
""",
}


class Shop:
    """Packages in a temporary folder, imported anew after each edit."""

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
        for known in [known for known in sys.modules if known.partition(".")[0] in OWN]:
            del sys.modules[known]
        return importlib.import_module(name)

    def agent(self) -> Code:
        return agent_code("shop.bot", {})

    def world(self) -> Code:
        return code_of(self.load("inn.world").open_world)


OWN = {name.partition("/")[0].removesuffix(".py") for name in FILES} | {"reader", "space"}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Shop(tmp_path)
    for known in [known for known in sys.modules if known.partition(".")[0] in OWN]:
        del sys.modules[known]


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith(("shop/", "lib/"))])
def test_each_edit_of_an_agent_is_named(shop: Shop, name: str) -> None:
    before = shop.agent()
    shop.write(name, f"{FILES[name]}\n# edited\n")
    after = shop.agent()
    assert before.digest != after.digest
    assert list(code_differences(before, after)) == [name]


@pytest.mark.parametrize("name", ["shop/new.md", "shop/new.py", "lib/deep/new.txt"])
def test_a_new_file_of_an_agent_counts(shop: Shop, name: str) -> None:
    before = shop.agent()
    shop.write(name, "1\n")
    assert list(code_differences(before, shop.agent())) == [name]


@pytest.mark.parametrize(
    "name", ["inn/world.py", "both.py", "shop/.hidden", "shop/__pycache__/a.pyc", "a.md"]
)
def test_an_edit_elsewhere_changes_no_agent(shop: Shop, name: str) -> None:
    before = shop.agent()
    shop.write(name, "# edited\n")
    assert shop.agent() == before


def test_a_module_outside_a_package_is_an_agent_with_all_that_it_imports_and_names(shop: Shop) -> None:
    shop.write("reader.py", "import lib.plan\n\nTEXT = open('notes/a.md')\n")
    shop.write("notes/a.md", "A note.")
    files = [name for name in FILES if name.startswith("lib/")]
    assert sorted(agent_code("reader", {}).files) == sorted(["reader.py", "notes/a.md", *files])


def test_further_folders_belong_to_an_agent(shop: Shop) -> None:
    shop.write("prompts/more/a.md", "Be kind.")
    shop.write("prompts/b.py", "import inn.deep\n")
    folders = {"prompts": shop.root / "prompts"}
    before = agent_code("shop.bot", folders)
    assert {"prompts/more/a.md", "prompts/b.py", "inn/deep.py"} <= before.files.keys()
    shop.write("prompts/more/a.md", "Be rude.")
    assert list(code_differences(before, agent_code("shop.bot", folders))) == ["prompts/more/a.md"]


def test_a_world_is_the_modules_that_its_module_imports_and_the_files_that_they_name(shop: Shop) -> None:
    names = ["inn/world.py", "inn/fees.py", "inn/late.py", "inn/deep.py", "inn/rooms/all.json"]
    before = shop.world()
    assert sorted(before.files) == sorted(names)
    for name in names:
        shop.write(name, f"{FILES[name]}\n")
        assert list(code_differences(before, shop.world())) == [name]
        shop.write(name, FILES[name])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("open(f'texts/{1}.md')", "texts/a.md"),
        ("open('texts/{}.md'.format(1))", "texts/a.md"),
        ("os.path.join(FOLDER, str(1))", "texts/a.md"),
        ("files('inn.inner').joinpath('a.md')", "inn/inner/a.md"),
        ("HERE / 'PROMPT'", "inn/PROMPT"),
        ("HERE / 'bot (v2), new.md'", "inn/bot (v2), new.md"),
        ("run([sys.executable, HERE / 'worker.py'])", "inn/worker.py"),
        ("import_module('.worker', __package__)", "inn/worker.py"),
        ("run_module('inn.worker')", "inn/worker.py"),
        ("open(f'{HERE}/prompt.md')", "inn/prompt.md"),
        ("open(HERE + '/prompt.md')", "inn/prompt.md"),
        ("open('%s/prompt.md' % HERE)", "inn/prompt.md"),
        ("open(HERE + '/texts/' + str(1))", "inn/texts/a.md"),
        ("Path(__file__).with_name('PROMPT')", "inn/PROMPT"),
        ("HERE.glob('texts/*.md')", "inn/texts/a.md"),
        ("glob(join(HERE, 'texts', '*.md'))", "inn/texts/a.md"),
        ("Path(__file__).parent.glob('*.md')", "inn/a.md"),
        ("OWN.iterdir()", "inn/a.md"),
        ("HERE / 'texts' / NAME", "inn/texts/results/a.md"),
    ],
)
def test_a_file_that_the_code_names_counts(shop: Shop, text: str, name: str) -> None:
    head = "from pathlib import Path\n\nFOLDER = 'texts'\nOWN = Path(__file__).parent\n"
    shop.write("inn/reader.py", f"{head}\n\ndef make():\n    return {text}\n")
    shop.write(name, "'one'")
    before = code_of("inn.reader")
    shop.write(name, "'other'")
    assert list(code_differences(before, code_of("inn.reader"))) == [name]


def test_a_world_next_to_its_agent_counts_by_the_source_of_its_class(shop: Shop) -> None:
    def world() -> Code:
        found = shop.load("both").World
        return code_of(found, shared=[shop.root / "both.py"])

    before = world()
    assert sorted(before.files) == ["both.py", "inn/deep.py", "inn/fees.py", "inn/late.py"]
    shop.edit("both.py", "return lib.plan.steps()", "return None")
    shop.write("lib/plan.py", "")
    assert world() == before
    shop.edit("both.py", "return inn.fees.FEE", "return inn.fees.FEE + 1")
    assert list(code_differences(before, world())) == ["both.py"]


def test_docstrings_of_tools_may_not_count(shop: Shop) -> None:
    def code(*, has_docstrings: bool) -> Code:
        return code_of(shop.load("inn.world").World, has_docstrings=has_docstrings)

    before = [code(has_docstrings=flag) for flag in (True, False)]
    shop.edit("inn/world.py", "Book a room.", "Book a room.\n\n        Ask first.\n        ")
    after = [code(has_docstrings=flag) for flag in (True, False)]
    assert before[0] != after[0]
    assert before[1] == after[1]


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


class Method:
    def fingerprint(self) -> str:
        return "1"


@pytest.mark.parametrize("make", [Hostile, lambda: Method])
def test_an_object_that_raises_is_unknown(make: Callable[[], object]) -> None:
    assert code_of(make()).unknown


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


def test_a_folder_with_too_many_files_is_unknown(shop: Shop) -> None:
    for number in range(MAX_FILES):
        shop.write(f"shop/texts/{number}.md", "")
    assert shop.agent().unknown.startswith(f"it has over {MAX_FILES} files, such as shop/texts/")


def test_older_identities_are_compared_by_the_files_that_both_name() -> None:
    old = Code(files={"a.py": "1", "b.py": "2"})
    assert "identity" not in old.model_dump(mode="json")
    same = Code(files={"a.py": "1", "c.md": "3"}, identity=FILE_IDENTITY)
    other = Code(files={"a.py": "4", "c.md": "3"}, identity=FILE_IDENTITY)
    assert list(code_differences(old, same)) == []
    assert list(code_differences(old, other)) == ["a.py"]
