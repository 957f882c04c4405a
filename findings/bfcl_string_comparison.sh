#!/usr/bin/env bash
# Package:   bfcl-eval 2026.3.23 (2026-11-28)
# Input:     two tasks of the benchmark's own data with the package's checker. For each, the answer that the data names,
#            an answer with another place or function, and an answer with another number.
# Expected:  only the first answer is valid.
# Observed:  the longitude 118.2437 (in China) is valid for -118.2437 (Los Angeles), and the integral of 3x*2 for that of
#            3x**2. The checker removes spaces and the characters , . / - _ * ^ from both strings before it compares
#            them, so a sign, an operator or the place of a decimal point does not count. Numbers that are no strings
#            are compared exactly.
# Source:    bfcl_eval/eval_checker/ast_eval/ast_checker.py, standardize_string and string_checker.
# Matters:   a model that drops a sign or changes a formula has the same score as one that does not. A reward made from
#            this checker trains on such calls. Compare coordinates, formulas, versions and ids again, exactly.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
# Only the checker and the data are used, so the clients of the models, which are dependencies, are not needed.
"$work/venv/bin/python" -m pip install --quiet --no-deps bfcl-eval==2026.3.23
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import json
import sys
from pathlib import Path
from types import ModuleType

# The table of models, which imports the clients, says how a model writes the names of functions with a dot. The names
# below have none.
table = ModuleType("bfcl_eval.constants.model_config")
table.MODEL_CONFIG_MAPPING = {}
sys.modules[table.__name__] = table

import bfcl_eval  # noqa: E402
from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402

DATA = Path(bfcl_eval.__file__).parent / "data"
CASES = {
    ("live_simple", "live_simple_113-69-0"): [
        {"geolocation": "34.0522, -118.2437"},
        {"geolocation": "34.0522, 118.2437"},
        {"geolocation": "34.0522, -118.2437", "base_price": 101.0},
    ],
    ("multiple", "multiple_33"): [{"func": "3x**2"}, {"func": "3x*2"}, {"func": "3x**2", "b": 5}],
}


def line(file, task_id):
    return next(task for task in map(json.loads, file.read_text().splitlines()) if task["id"] == task_id)


def first_answer(values):
    return {name: answers[0] for name, answers in values.items() if answers[0] != ""}


seen = {}
for (category, task_id), changes in CASES.items():
    file = f"BFCL_v4_{category}.json"
    functions = line(DATA / file, task_id)["function"]
    answer = line(DATA / "possible_answer" / file, task_id)["ground_truth"]
    ((name, values),) = answer[0].items()
    assert "." not in name
    seen[task_id] = []
    for change in changes:
        call = {name: first_answer(values) | change}
        result = ast_checker(functions, [call], answer, Language.PYTHON, category, "any")
        seen[task_id].append(result["valid"])
        print(f"{task_id}: valid {result['valid']}: {call}")
unchanged = seen == {task_id: [True, True, False] for _, task_id in CASES}
sys.exit(0 if unchanged else "changed: the verdicts differ from the description above")
PYTHON
