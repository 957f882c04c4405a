#!/usr/bin/env bash
# Packages:  inspect-evals 0.26.0 with inspect-ai 0.3.285 (2026-11-28)
# Input:     the banking task task_051 of tau2 with the package's own initializer and scorer. Instead of a model, a
#            solver performs exactly the actions that the task lists. Then the same with an initializer that receives
#            a deep copy of the sample's metadata.
# Expected:  a run that performs exactly the listed actions has the score C.
# Observed:  the score is I, and with the copy it is C. The initializer places records of the sample's metadata in the
#            database without a copy, so the agent's actions change the metadata. The scorer then builds the expected
#            database from the changed metadata. The scorer's replay changes the metadata in the same way, so the log
#            holds another initial state than the task file in both runs (a balance of 2000.00 instead of 5000.00).
# Source:    inspect_evals/tau2/banking/environment.py, _deep_merge; banking/solver.py, banking_initializer.
# Matters:   the initial state in such a log is not the state in which the agent started. A reader must take the
#            initial state from the task file of the release, and a score of this task can be false.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet inspect-ai==0.3.285 inspect-evals==0.26.0
cd "$work"
export XDG_DATA_HOME="$work/data" XDG_CACHE_HOME="$work/cache"
"$work/venv/bin/python" - <<'PYTHON'
import json
import sys
from copy import deepcopy
from types import SimpleNamespace

from inspect_ai import Task
from inspect_ai import eval as run_eval
from inspect_ai.solver import solver
from inspect_evals.tau2.banking.dataset import read_dataset
from inspect_evals.tau2.banking.environment import get_agent_tools, get_user_tools
from inspect_evals.tau2.banking.scorer import banking_scorer
from inspect_evals.tau2.banking.solver import banking_initializer
from inspect_evals.tau2.common.metadata import Tau2MetaData


@solver
def initialize_from_copy():
    async def solve(state, generate):
        await banking_initializer()(SimpleNamespace(metadata=deepcopy(state.metadata)), generate)
        return state

    return solve


@solver
def listed_actions():
    async def solve(state, generate):
        for action in Tau2MetaData.model_validate(state.metadata).task.evaluation_criteria.actions:
            if not action.name.endswith("transfer_to_human_agents"):
                side = get_agent_tools() if action.requestor == "assistant" else get_user_tools()
                getattr(side, action.name.removeprefix("banking_"))(**action.arguments)
        return state

    return solve


def observe(name, initializer):
    dataset = read_dataset("BankingAgent").filter(lambda sample: sample.id == "task_051")
    before = json.dumps(dataset[0].metadata["task"]["initial_state"], sort_keys=True)
    task = Task(dataset=dataset, solver=[initializer, listed_actions()], scorer=banking_scorer())
    (log,) = run_eval(task, model="mockllm/model", display="none", log_dir="logs")
    (sample,) = log.samples
    score = sample.scores["banking_scorer"].value
    kept = json.dumps(sample.metadata["task"]["initial_state"], sort_keys=True) == before
    print(f"{name}: status {log.status}, score {score}, initial state in the log unchanged: {kept}")
    return log.status, score, kept


shared = observe("the package's initializer", banking_initializer())
copied = observe("initializer with a copy", initialize_from_copy())
unchanged = shared == ("success", "I", False) and copied == ("success", "C", False)
sys.exit(0 if unchanged else "changed: the scores differ from the description above")
PYTHON
