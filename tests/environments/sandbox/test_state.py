"""A generated module computes from its arguments alone: no clock, no chance, no state between calls."""

import pytest

from pytest_trace2evolve.environments.sandbox.box import Sandbox
from pytest_trace2evolve.environments.sandbox.rules import check
from pytest_trace2evolve.errors import GeneratedCodeError, SandboxEndedError, SourceRefusedError
from tests.environments.sandbox.layers import PATIENT, WithoutRules

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

KEPT_TEXT = """
count = [0]
def grade():
    count[0] += 1
    return count[0]
---
count = {}
def grade():
    count[len(count)] = 1
    return len(count)
---
from itertools import count
numbers = count()
def grade(): return next(numbers)
---
numbers = iter(range(9))
def grade(): return next(numbers)
---
def made():
    n = 0
    def inner():
        nonlocal n
        n += 1
        return n
    return inner
grade = made()
---
def grade(seen=[]):
    seen.append(1)
    return len(seen)
---
class Grade:
    n = 0
def grade():
    Grade.n += 1
    return Grade.n
---
def grade():
    grade.n = grade.n + 1
    return grade.n
grade.n = 0
---
from functools import lru_cache
seen = []
@lru_cache
def once(): seen.append(1)
def grade():
    once()
    seen.append(1)
    return len(seen)
---
from random import Random
rng = Random(1)
def grade(): return rng.random()
---
from collections import deque
kept = deque([0])
def grade():
    kept.append(kept[-1] + 1)
    return kept[-1]
---
def numbers():
    n = 0
    while True:
        n += 1
        yield n
made = numbers()
def grade(): return next(made)
---
from dataclasses import dataclass
@dataclass
class Kept:
    n: int = 0
kept = Kept()
def grade():
    kept.n += 1
    return kept.n
---
import random
place = random
try:
    n = place.n
except AttributeError:
    n = 0
place.n = n + 1
def grade(): return n
---
from collections import Counter
try:
    n = Counter.n
except AttributeError:
    n = 0
Counter.n = n + 1
def grade(): return n
---
from random import Random
try:
    n = Random.n
except AttributeError:
    n = 0
Random.n = n + 1
def grade(): return n
---
import re
try:
    n = re.ASCII.n
except AttributeError:
    n = 0
re.ASCII.n = n + 1
def grade(): return n
---
from statistics import mean
try:
    n = mean.n
except AttributeError:
    n = 0
mean.n = n + 1
def grade(): return n
"""
KEPT = KEPT_TEXT.split("---\n")


@pytest.mark.parametrize("source", CLOCKS)
def test_a_source_that_reads_the_clock_is_refused(source: str) -> None:
    with pytest.raises(
        SourceRefusedError, match="it reads the clock, and a scenario follows from its seed alone"
    ):
        check(source, "module")


@pytest.mark.parametrize("source", [one for one in CLOCKS if ".date()" not in one])
def test_without_the_rules_there_is_no_clock_either(source: str) -> None:
    with pytest.raises(GeneratedCodeError, match="there is no clock here"), WithoutRules(source) as box:
        box.call("grade")


def test_a_class_of_the_library_is_not_registered_with() -> None:
    source = "from collections.abc import Sized\nfrom decimal import Decimal\nSized.register(Decimal)"
    with pytest.raises(SourceRefusedError, match="it changes a class of the library"):
        check(source, "module")


@pytest.mark.parametrize("seed", ["", "None"])
def test_random_numbers_need_a_seed(seed: str) -> None:
    source = f"from random import Random\ndef grade(): return Random({seed}).random()"
    with Sandbox(source, "module", PATIENT) as box, pytest.raises((GeneratedCodeError, SandboxEndedError)):
        box.call("grade")
    source = "from random import Random\ndef grade():\n    one = Random(1)\n    one.seed()\n    return 1"
    with (
        Sandbox(source, "module", PATIENT) as box,
        pytest.raises(GeneratedCodeError, match="Random needs a seed"),
    ):
        box.call("grade")


@pytest.mark.parametrize("source", KEPT)
def test_nothing_is_kept_between_calls(source: str) -> None:
    with Sandbox(source, "module", PATIENT) as box:
        assert len({box.call("grade") for _ in range(4)}) == 1


DATES = """
import datetime
from copy import copy, deepcopy
from datetime import date, timedelta
from random import Random


def grade():
    one = datetime.datetime(2026, 5, 4, 3, 2)
    later = one + timedelta(days=1)
    rng = Random(4)
    rng.random()
    return [
        isinstance(one, date), isinstance(one.date(), date), isinstance(date(2026, 1, 1), datetime.datetime),
        one.date() == date(2026, 5, 4), date(2026, 5, 4) < later.date(), str(later), f"{later:%d.%m.%Y}",
        datetime.datetime.strptime("2026-05-04", "%Y-%m-%d").isoformat(), (later - one).days,
        datetime.date.fromisoformat("2026-05-04").weekday(), deepcopy(one) == one,
        copy(rng).random() == rng.random(),
        issubclass(datetime.datetime, date), hash_free(one),
    ]


def hash_free(value):
    return {value: 1}[datetime.datetime(2026, 5, 4, 3, 2)]
"""


def test_dates_compute_as_ever() -> None:
    with Sandbox(DATES, "module", PATIENT) as box:
        found = box.call("grade")
    assert found == [
        *(True, True, False, True, True, "2026-05-05 03:02:00", "05.05.2026", "2026-05-04T00:00:00", 1, 0),
        *(True, True, True, 1),
    ]


def test_what_a_module_does_to_itself_while_loading_does_not_last() -> None:
    source = "import json\nkept = []\ndef scenario(n):\n    kept.append(n)\n    return kept"
    with Sandbox(source, "module", PATIENT) as box:
        assert [box.call("scenario", n) for n in (3, 4, 3)] == [[3], [4], [3]]
        with pytest.raises(GeneratedCodeError, match="it has no such function"):
            box.call("grade")
