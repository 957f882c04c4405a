#!/usr/bin/env bash
# Package:   inspect-ai 0.3.285 (2026-11-28)
# Input:     two samples with three epochs each and fail_on_error=False. The sample "good" is correct three times. The
#            sample "poor" is incorrect twice, and its third epoch ends with a ConnectionError. The eval runs with four
#            reducers of the package.
# Expected:  pass^3 is 0.5: three successes of "poor" are impossible, whatever the lost epoch would have given.
# Observed:  pass_k_3 reports an accuracy of 1.0 with a standard error of 0, over one sample. The reduced score of
#            "poor" is NaN, and a NaN is left out of the metric. pass_at_3 gives 1.0 too. at_least_3 gives 0.5, and so
#            does the mean. The log has status "success"; only the field unscored_samples of the two results is 1.
# Source:    inspect_ai/scorer/_reducer/reducer.py, pass_k and pass_at (fewer values than k); the errored epoch has no
#            score and is no member of the list that they reduce.
# Matters:   a lost epoch can raise pass^k, and it removes the very tasks on which an agent fails. Two agents of which
#            one runs into more infrastructure errors are compared over different tasks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet inspect-ai==0.3.285
cd "$work"
export XDG_DATA_HOME="$work/data" XDG_CACHE_HOME="$work/cache"
"$work/venv/bin/python" - <<'PYTHON'
import math
import sys

from inspect_ai import Epochs, Task
from inspect_ai import eval as run_eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, scorer, stderr
from inspect_ai.solver import solver

EPOCHS = {"good": "CCC", "poor": "II-"}


@solver
def scripted():
    async def solve(state, generate):
        if EPOCHS[state.sample_id][state.epoch - 1] == "-":
            raise ConnectionError("the tool's service does not answer")
        return state

    return solve


@scorer(metrics=[accuracy(), stderr()])
def outcome():
    async def score(state, target):
        return Score(value=EPOCHS[state.sample_id][state.epoch - 1])

    return score


def observe(reducer):
    dataset = [Sample(id=name, input="Hello") for name in EPOCHS]
    task = Task(dataset=dataset, solver=scripted(), scorer=outcome(), epochs=Epochs(3, reducer))
    (log,) = run_eval(task, model="mockllm/model", display="none", log_dir="logs", fail_on_error=False)
    (result,) = log.results.scores
    reduced = {score.sample_id: score.value for score in log.reductions[0].samples}
    metrics = {name: metric.value for name, metric in result.metrics.items()}
    print(f"{reducer}: status {log.status}, {metrics}, reduced {reduced}, unscored {result.unscored_samples}")
    lost = math.isnan(reduced["poor"])
    return log.status, metrics["accuracy"], lost, result.unscored_samples


seen = {reducer: observe(reducer) for reducer in ("pass_k_3", "pass_at_3", "at_least_3", "mean")}
dropped, counted = ("success", 1.0, True, 1), ("success", 0.5, False, 0)
expected = {"pass_k_3": dropped, "pass_at_3": dropped, "at_least_3": counted, "mean": counted}
sys.exit(0 if seen == expected else "changed: the metrics differ from the description above")
PYTHON
