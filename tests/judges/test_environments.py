"""The prompt for an environment's module, and the module of an answer."""

import pytest

from pytest_trace2evolve.judges.environments import read_module


@pytest.mark.parametrize(
    ("answer", "module"),
    [
        (
            "Here it is:\n```python\nx = 1\n```\nand ```py\ndef scenario(): pass\n```",
            "def scenario(): pass\n",
        ),
        ("def scenario(seed, difficulty): ...", "def scenario(seed, difficulty): ...\n"),
        ("I would rather not.", ""),
        ("```python\n\n```", ""),
        (None, ""),
    ],
)
def test_the_module_of_an_answer(answer: str | None, module: str) -> None:
    assert read_module(answer) == module
