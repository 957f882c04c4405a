#!/usr/bin/env bash
# Package:   pydantic-evals 2.62.0 (2026-11-28)
# Input:     a dataset of two cases with a deterministic task. An evaluator checks each step of the output: one step in
#            the case "short", which passes, and three in the case "long", which fail. The dataset is evaluated with
#            repeat=1 and with repeat=2.
# Expected:  the same rate of passed assertions, because each repetition has the same outputs.
# Observed:  averages().assertions is 0.25 with one repetition (1 of 4 assertions) and 0.5 with two. One repetition
#            pools the assertions of all cases; several average the rates of the cases, each with the same weight.
#            The last row of the printed report shows the same numbers, without the rule.
# Source:    pydantic_evals/reporting/__init__.py, EvaluationReport.averages, ReportCaseAggregate.average and
#            average_from_aggregates.
# Matters:   a candidate that is measured with repetitions cannot be compared with a baseline of one repetition: the
#            difference is in the average's definition. Compute the rate from report.cases instead.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet pydantic-evals==2.62.0
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import sys
from dataclasses import dataclass

from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import Evaluator


@dataclass
class Steps(Evaluator):
    def evaluate(self, ctx):
        return {f"step {number}": passed for number, passed in enumerate(ctx.output)}


cases = [Case(name="short", inputs=[True]), Case(name="long", inputs=[False, False, False])]
dataset = Dataset(name="findings", cases=cases, evaluators=[Steps()])
rates = {}
for repeat in (1, 2):
    report = dataset.evaluate_sync(lambda steps: steps, name="findings", repeat=repeat, progress=False)
    assertions = [a.value for case in report.cases for a in case.assertions.values()]
    rates[repeat] = report.averages().assertions
    print(f"repeat={repeat}: {sum(assertions)} of {len(assertions)} assertions pass, averages {rates[repeat]}")
sys.exit(0 if rates == {1: 0.25, 2: 0.5} else "changed: the averages differ from the description above")
PYTHON
