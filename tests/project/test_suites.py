"""Suites: reading a file, which tasks its splits mean, and what each mistake is answered with."""

from pathlib import Path

import pytest

from pytest_trace2evolve.errors import SuiteError
from pytest_trace2evolve.project.suites import Role, Split, Suite, read_splits, read_suite, split_registry
from pytest_trace2evolve.records.verdict import Estimand
from tests.gate_helpers import ShopWorld

HEAD = 'provider = "fake"\ndomain = "shop"\n'
BASE = [str(number) for number in range(8)]
WORLD = ShopWorld(
    [*BASE, "refund_order", "[mms_issue]a|b[PERSONA:None]"],
    {"base": BASE, "test": ["6", "7"], "nothing": [], "doubled": ["1", "2", "1"]},
)


def read(folder: Path, text: str) -> Suite:
    path = folder / "shop.toml"
    path.write_text(text, encoding="utf-8")
    return read_suite(path, split_registry())


def resolve(folder: Path, splits: str) -> dict[str, list[str]]:
    return read(folder, f"{HEAD}[splits]\n{splits}\n").resolve(WORLD, folder / "shop.toml")


def test_every_field_is_read(tmp_path):
    fields = 'description = "d"\ntrials = 4\nmax_steps = 50\nmax_errors = 3\ndefault_agent = "tiny"\n'
    fields += 'timeout = 90\nsolo = true\nestimand = "suite"\nlocks = ["policy"]\n'
    suite = read(tmp_path, f'name = "shop"\n{HEAD}{fields}[splits]\nheldout = ["1"]\n')
    assert suite.model_dump() == {
        "name": "shop",
        "provider": "fake",
        "domain": "shop",
        "description": "d",
        "trials": 4,
        "max_steps": 50,
        "max_errors": 3,
        "timeout": 90.0,
        "solo": True,
        "default_agent": "tiny",
        "locks": ("policy",),
        "estimand": Estimand.SUITE,
        "splits": {"heldout": ("1",)},
    }


@pytest.mark.parametrize(
    ("splits", "meant"),
    [
        ('heldout = ["3", "1"]', {"heldout": ["3", "1"]}),
        ('heldout = ["2..4"]', {"heldout": ["2", "3", "4"]}),
        ('heldout = ["5..5", "refund_order", "0..1"]', {"heldout": ["5", "refund_order", "0", "1"]}),
        ('heldout = ["[mms_issue]a|b[PERSONA:None]"]', {"heldout": ["[mms_issue]a|b[PERSONA:None]"]}),
        ('development = { benchmark = "test" }', {"development": ["6", "7"]}),
        (
            'discovery = { rest = "base" }\nheldout = ["1..4"]\ntransfer = { benchmark = "test" }',
            {"discovery": ["0", "5"], "heldout": ["1", "2", "3", "4"], "transfer": ["6", "7"]},
        ),
    ],
)
def test_splits_mean_their_tasks_in_the_order_of_the_file(tmp_path, splits, meant):
    resolved = resolve(tmp_path, splits)
    assert resolved == meant
    assert list(resolved) == list(meant)


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ('heldout = ["1..4"]\ndiscovery = ["4"]', "task '4' is in 'heldout' and 'discovery'"),
        ('discovery = ["7"]\nheldout = { benchmark = "test" }', "task '7' is in 'discovery' and 'heldout'"),
        ('heldout = ["1..4", "2"]', "task '2' is in 'heldout' twice; a task belongs to one split"),
        ('heldout = { benchmark = "doubled" }', "task '1' is in 'heldout' twice"),
        ("heldout = []", "split 'heldout' contains no tasks"),
        ('heldout = { benchmark = "nothing" }', "split 'heldout' contains no tasks"),
        (
            'heldout = { benchmark = "base" }\ndiscovery = { rest = "test" }',
            "split 'discovery' contains no tasks",
        ),
        ('discovery = { rest = "base" }\ntransfer = { rest = "test" }', "split 'transfer' contains no tasks"),
        ('heldout = ["4..3"]', "split 'heldout' has the empty range '4..3'"),
        ('heldout = ["7..8"]', "split 'heldout' names task '8', which shop does not have"),
        ('heldout = ["refund_oder"]', "does not have; did you mean 'refund_order'?"),
        ('heldout = ["zzz"]', "split 'heldout' names task 'zzz', which shop does not have"),
        (
            'heldout = { benchmark = "train" }',
            "benchmark split 'train'; shop has base, test, nothing, doubled",
        ),
        ('heldout = { rest = "train" }', "split 'train'; shop has base, test, nothing, doubled"),
    ],
)
def test_a_split_that_does_not_fit_the_world_is_refused(tmp_path, splits, expected):
    with pytest.raises(SuiteError) as caught:
        resolve(tmp_path, splits)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'shop.toml'}: ")
    assert expected in message
    assert "\n" not in message


SPLITS = '[splits]\nheldout = ["1"]\n'
BROKEN = [
    ("provider = ", "not valid TOML: "),
    (HEAD + "[splits", "not valid TOML: "),
    ('domain = "shop"\n' + SPLITS, 'no world is named; add world = "module:name" to [tool.trace2evolve]'),
    (HEAD, "splits: Field required"),
    (HEAD + "[splits]\n", "splits: "),
    (HEAD + 'author = "me"\n' + SPLITS, "unknown key 'author'; known are "),
    (HEAD + "trials = 0\n" + SPLITS, "trials: "),
    (HEAD + "max_steps = 1.5\n" + SPLITS, "max_steps: "),
    (HEAD + 'name = "store"\n' + SPLITS, "a suite is named after its file; remove 'name' or rename the file"),
    (HEAD + '[splits]\nholdout = ["1"]\n', "unknown split 'holdout'; known are discovery, heldout, "),
    (HEAD + '[splits]\nheldout = { benchmark = "test", rest = "base" }\n', "splits.heldout"),
]


@pytest.mark.parametrize(("text", "expected"), BROKEN, ids=[expected for _, expected in BROKEN])
def test_a_broken_file_is_answered_in_one_line_with_file_place_and_cause(tmp_path, text, expected):
    with pytest.raises(SuiteError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'shop.toml'}: {expected}")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ("splits = 3", "splits is a int, not a table"),
        (
            '[splits]\nheldout = ["1"]',
            "split 'heldout' is in [splits] and in tasks.yaml; remove it from one of",
        ),
    ],
)
def test_splits_that_do_not_fit_a_file_of_tasks_are_named(tmp_path, splits, expected):
    path = tmp_path / "shop.toml"
    path.write_text(f'{HEAD}tasks = "tasks.yaml"\n{splits}\n', encoding="utf-8")
    with pytest.raises(SuiteError) as caught:
        read_suite(path, split_registry(), read_task_splits=lambda tasks: ["heldout", "discovery"])
    assert str(caught.value).startswith(f"{path}: {expected}")


def further(folder: Path, text: str) -> tuple[Split, ...]:
    path = folder / "_splits.toml"
    path.write_text(text, encoding="utf-8")
    return read_splits(path)


NIGHTLY = '[nightly]\nrole = "report"\ndescription = "run at night"\n'


def test_a_project_may_add_splits_of_its_own(tmp_path):
    splits = further(tmp_path, NIGHTLY + '[a_2]\nrole = "guard"\ndescription = ""\n')
    assert splits == (
        Split(name="nightly", role=Role.REPORT, description="run at night"),
        Split(name="a_2", role=Role.GUARD, description=""),
    )
    path = tmp_path / "shop.toml"
    path.write_text(f'{HEAD}[splits]\nnightly = ["1"]\n', encoding="utf-8")
    assert list(read_suite(path, split_registry(splits)).splits) == ["nightly"]
    with pytest.raises(SuiteError, match="unknown split 'nightly'"):
        read_suite(path, split_registry())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[nightly", "not valid TOML: "),
        ('[nightly]\nrole = "judge"\ndescription = "d"\n', "split 'nightly': role: "),
        ('[nightly]\nrole = "gate"\n', "split 'nightly': description: Field required"),
        ("nightly = 3\n", "split 'nightly': role: Field required"),
        (NIGHTLY + "trials = 2\n", "split 'nightly': unknown key 'trials'; "),
        (NIGHTLY + 'name = "daily"\n', "split 'nightly': "),
        (NIGHTLY.replace("nightly", "Nightly"), "split 'Nightly': name: "),
        (NIGHTLY.replace("nightly", '"2x"'), "split '2x': name: "),
    ],
)
def test_a_broken_split_is_refused_with_file_place_and_cause(tmp_path, text, expected):
    with pytest.raises(SuiteError) as caught:
        further(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / '_splits.toml'}: {expected}")
    if "TOML" not in expected:
        assert message.endswith("; roles are gate, development, guard, report")


def test_what_each_known_split_is_good_for():
    roles = {name: split.role for name, split in split_registry().items()}
    assert roles == {
        "discovery": Role.REPORT,
        "heldout": Role.GATE,
        "development": Role.DEVELOPMENT,
        "transfer": Role.GUARD,
        "synthetic": Role.GUARD,
    }


def test_the_definition_covers_the_file_but_not_its_wording_trials_or_default_agent(tmp_path):
    suite = read(tmp_path, HEAD + SPLITS)
    same = {"description": "d", "trials": 8, "default_agent": "tiny"}
    assert suite.model_copy(update=same).definition == suite.definition
    for field in ({"max_steps": 9}, {"max_errors": 9}, {"domain": "x"}, {"splits": {"heldout": ("2",)}}):
        assert suite.model_copy(update=field).definition != suite.definition
