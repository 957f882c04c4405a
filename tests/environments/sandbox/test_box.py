"""A sandbox at work: fair modules run and repeat, unfair ones are stopped with the cause, nothing is left."""

import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pytest_trace2evolve.environments.sandbox.box import Limits, Sandbox, isolation_problem
from pytest_trace2evolve.errors import GeneratedCodeError, SandboxEndedError
from tests.environments.sandbox.layers import FINE, PATIENT, LockAlone, hurried
from tests.environments.sandbox.test_rules import FAIR
from tests.patience import HANG_SECONDS, gone

pytestmark = pytest.mark.skipif(bool(isolation_problem()), reason=isolation_problem())


@pytest.fixture(scope="module")
def fine() -> Iterator[Sandbox]:
    with Sandbox(FINE, "fine") as box:
        yield box


def test_a_fair_module_works(fine: Sandbox) -> None:
    made = fine.call("scenario", 7)
    assert len(made["names"]) == 20
    assert made["exact"] == "0.3"
    assert made["words"] == ["a", "b"]
    assert made["most"] == [["a", 2]]
    assert made["point"] == [1, 2]
    assert made["umlaut"] == "Zoë \u2028 😀"


def test_calls_share_one_process_and_no_state(fine: Sandbox) -> None:
    pid = fine.pid
    assert len({fine.call("counted") for _ in range(3)}) == 1
    assert fine.pid == pid


def test_an_exception_is_told_with_its_line_and_the_sandbox_goes_on(fine: Sandbox) -> None:
    line = FINE.splitlines().index("    y = 1 // x") + 1
    with pytest.raises(GeneratedCodeError) as raised:
        fine.call("fails", 0)
    assert str(raised.value) == (
        f"fine, line {line}: fails() failed: ZeroDivisionError: integer division or modulo by zero"
    )
    with pytest.raises(GeneratedCodeError, match=r"fine: missing\(\) failed: it has no such function"):
        fine.call("missing")
    with pytest.raises(GeneratedCodeError, match=r"TypeError: fails\(\) takes 1 positional argument"):
        fine.call("fails", 1, 2)
    assert fine.call("fails", 1) == 1


def test_what_a_model_writes_loads() -> None:
    with (
        Sandbox(FAIR, "fair") as box,
        pytest.raises(GeneratedCodeError, match="its answer is not valid JSON: TypeError: Object of type"),
    ):
        box.call("scenario", 1)


LAZY = "class A(Exception):\n    def SPECIAL:\n        while True: pass\ndef attack():\n"
UNENDING = {
    "a loop that catches": (
        "def attack():\n    while 1:\n        try: attack()\n        except Exception: pass\n"
    ),
    "a regex": "import re\ndef attack():\n    return bool(re.match('(a+)+$', 'a' * 60 + 'b'))\n",
    "a power": "def attack():\n    return 10**10**9\n",
    "a sum": "import itertools\ndef attack():\n    return sum(itertools.repeat(1))\n",
    "a sort": f"{LAZY.replace('SPECIAL', '__lt__(self, other)')}    return sorted([A(), A()])\n",
    "an exception's words": f"{LAZY.replace('SPECIAL', '__str__(self)')}    raise A()\n",
}


@pytest.mark.parametrize("source", UNENDING.values(), ids=UNENDING)
def test_a_call_without_end_is_stopped(source: str) -> None:
    with hurried(Sandbox(source, "slow", PATIENT), 0.1) as box:
        with pytest.raises(
            SandboxEndedError, match=r"^slow: stopped during attack\(\): it took longer than 0.1 s$"
        ):
            box.call("attack")
        assert gone(box.pid)


def test_a_module_that_loads_without_end_is_stopped() -> None:
    with pytest.raises(SandboxEndedError, match=r"slow: stopped during loading: it took longer than 0\.3 s"):
        Sandbox("while True:\n    pass\n", "slow", Limits(seconds=0.3))


def test_processor_time_is_bounded_over_all_calls() -> None:
    source = "def attack():\n    return sum(range(3_000_000))\n"

    def attack_often() -> None:
        for _ in range(1000):
            box.call("attack")

    message = r"it used more than 1 s of processor time \(SIGXCPU\)"
    with (
        Sandbox(source, "busy", Limits(HANG_SECONDS, cpu_seconds=1)) as box,
        pytest.raises(SandboxEndedError, match=message),
    ):
        attack_often()


MEMORY = """
def text():
    return len("x" * 300_000_000)

def list_of_zeros():
    return len([0] * 40_000_000)

def growing_list():
    made = []
    for _ in range(400):
        made.append("x" * 1_000_000)
    return len(made)
"""


def test_memory_is_bounded() -> None:
    names = ("text", "list_of_zeros", "growing_list")
    with Sandbox(MEMORY, "large", replace(PATIENT, memory_mib=64)) as box:
        for name in names:
            with pytest.raises(
                GeneratedCodeError, match=r"it needs more than 64 MiB of memory \(MemoryError"
            ):
                box.call(name)
    with Sandbox(MEMORY, "large", replace(PATIENT, memory_mib=1024)) as box:
        assert all(box.call(name) > 0 for name in names)


ANSWERS = {
    "NaN": ("float('nan')", "ValueError: Out of range float values are not JSON compliant"),
    "infinity": ("1e999", "ValueError: Out of range float values are not JSON compliant"),
    "a set": ("{1}", "TypeError: Object of type set is not JSON serializable"),
    "a function": ("answer", "TypeError: Object of type function is not JSON serializable"),
    "a generator": ("(i for i in 'ab')", "TypeError: Object of type generator is not JSON serializable"),
    "bytes": ("b'x'", "TypeError: Object of type bytes is not JSON serializable"),
    "a circle": ("circle", "RecursionError: maximum recursion depth exceeded"),
    "half of a character": ("chr(0xD800)", "UnicodeEncodeError"),
    "deep": ("deep", "RecursionError"),
    "long": ("'x' * 100_000_000", "ValueError: the answer has 1000"),
    "evil keys": ("{Evil(): 1}", "TypeError: keys must be str, int, float, bool or None, not Evil"),
    "a class": ("Evil", "TypeError: Object of type type is not JSON serializable"),
    "deep recursion": ("answer()", "RecursionError: maximum recursion depth exceeded"),
    "a long number": ("int('9' * 4000) ** 2", "ValueError: Exceeds the limit"),
}
ODD = """
class Evil:
    def __str__(self):
        return answer()
circle = []
circle.append(circle)
deep = []
for _ in range(100_000):
    deep = [deep]
def fine():
    return 1
def answer():
    return answer()
"""


@pytest.fixture(scope="module")
def odd() -> Iterator[Sandbox]:
    answers = [
        f"def answer_{place}():\n    return {value}\n" for place, (value, _) in enumerate(ANSWERS.values())
    ]
    with Sandbox(ODD + "".join(answers), "odd", replace(PATIENT, memory_mib=512)) as box:
        yield box


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_no_json_is_an_error(odd: Sandbox, name: str) -> None:
    with pytest.raises(GeneratedCodeError) as raised:
        odd.call(f"answer_{list(ANSWERS).index(name)}")
    assert ANSWERS[name][1] in str(raised.value)
    assert odd.call("fine") == 1


ENDS = {
    "exit": ("import os\ndef attack():\n    os._exit(3)\n", "it ended by itself with status 3"),
    "a crash": ("import ctypes\ndef attack():\n    ctypes.string_at(0)\n", r"it crashed \(SIGSEGV\)"),
    "abort": ("import os\ndef attack():\n    os.abort()\n", r"the kernel killed it \(SIGSYS\)"),
}


@pytest.mark.parametrize(("source", "message"), ENDS.values(), ids=ENDS)
def test_an_end_is_told_and_told_again(source: str, message: str) -> None:
    with LockAlone(source) as box:
        with pytest.raises(
            SandboxEndedError, match=rf"^attempt: stopped during attack\(\): .*{message}"
        ) as first:
            box.call("attack")
        with pytest.raises(SandboxEndedError) as second:
            box.call("fine")
        assert str(second.value) == str(first.value)
        assert gone(box.pid)


FORGED = {
    "text": ("b'hello\\n'", "its answer is not valid JSON"),
    "no object": ("b'[1]\\n'", "its answer is not valid JSON: it is not an object"),
    "no text": ("b'\\xff\\n'", "its answer is not valid JSON"),
    "NaN": ('b\'{"id":1,"value":NaN}\\n\'', "its answer is not valid JSON: NaN is not a finite number"),
    "infinity": (
        'b\'{"id":1,"value":1e999}\\n\'',
        "its answer is not valid JSON: 1e999 is not a finite number",
    ),
    "long infinity": (
        "b'{\"id\":1,\"value\":' + b'9' * 250 + b'e99}\\n'",
        "its answer is not valid JSON: 99999999999999999999 is not a finite number",
    ),
    "half of a character": ('b\'{"id":1,"value":"\\\\ud800"}\\n\'', "its answer is not valid JSON"),
    "deep": ("b'[' * 500_000 + b'\\n'", "its answer is not valid JSON"),
    "a long number": ("b'{\"id\":1,\"value\":' + b'9' * 9999 + b'}\\n'", "its answer is not valid JSON"),
    "another call": ('b\'{"id":2,"value":1}\\n\'', "it sent an answer that was not requested"),
    "no call": ('b\'{"id":true,"value":1}\\n\'', "it sent an answer that was not requested"),
    "more": ('b\'{"id":1,"value":1,"x":1}\\n\'', "it sent an answer that was not requested"),
    "an error without words": (
        'b\'{"id":1,"error":1,"line":1}\\n\'',
        "it sent an answer that was not requested",
    ),
    "twice": ('b\'{"id":1,"value":1}\\n\' * 2', "it sent more than one answer"),
    "a flood": ("b'x' * 3_000_000", "it sent more than 1048576 bytes"),
}


@pytest.mark.parametrize(("line", "message"), FORGED.values(), ids=FORGED)
def test_a_forged_answer_ends_it(line: str, message: str) -> None:
    source = f"import os, sys\ndef attack():\n    rest = {line}\n    while rest:\n"
    source += "        rest = rest[os.write(int(sys.argv[2]), rest):]\n    while True: pass\n"
    with LockAlone(source) as box, pytest.raises(SandboxEndedError, match=message):
        box.call("attack")


def test_an_answer_before_the_question_ends_it() -> None:
    source = (
        "import os, sys\ndef attack():\n"
        '    os.write(int(sys.argv[2]), b\'{"id":1,"value":1}\\n\')\n'
        "    x = sum(range(3_000_000))\n    return 2\n"
    )
    with LockAlone(source) as box:
        assert box.call("attack") == 1, "the forger may answer for itself"
        time.sleep(0.3)
        with pytest.raises(
            SandboxEndedError, match=r"it (answered before the request|sent an answer that was not requested)"
        ):
            box.call("attack")


def test_an_error_from_inside_cannot_paint_the_terminal() -> None:
    source = "def attack():\n    raise ValueError('\\x1b[31m\\nred\\u202e' * 99)\n"
    with Sandbox(source, "red") as box, pytest.raises(GeneratedCodeError) as raised:
        box.call("attack")
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 400


def test_patches_inside_do_not_reach_the_parent() -> None:
    source = (
        "import builtins, json, random\ndef attack():\n"
        "    json.loads = json.dumps = random.Random = builtins.sum = lambda *a, **k: 'evil'\n    return 1\n"
    )
    with LockAlone(source) as box:
        assert box.call("attack") == 1
        with pytest.raises(SandboxEndedError, match="it ended by itself with status 70"):
            box.call("attack")
    assert (sum([1]), json.loads("[1]"), random.Random(1).random() < 1) == (1, [1], True)


KEPT_TEXT = """
count = [0]
def grade():
    count[0] += 1
    return count[0]
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
def numbers():
    n = 0
    while True:
        n += 1
        yield n
made = numbers()
def grade(): return next(made)
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


@pytest.mark.parametrize("source", KEPT)
def test_nothing_is_kept_between_calls(source: str) -> None:
    with Sandbox(source, "module", PATIENT) as box:
        assert len({box.call("grade") for _ in range(3)}) == 1


def test_what_a_module_does_to_itself_while_loading_does_not_last() -> None:
    source = "import json\nkept = []\ndef scenario(n):\n    kept.append(n)\n    return kept"
    with Sandbox(source, "module", PATIENT) as box:
        assert [box.call("scenario", n) for n in (3, 4, 3)] == [[3], [4], [3]]
        with pytest.raises(GeneratedCodeError, match="it has no such function"):
            box.call("grade")
