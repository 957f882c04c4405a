#!/usr/bin/env bash
# Package:   inspect-evals 0.26.0 (2026-11-28)
# Input:     the banking tasks of tau2. The expected database of each task that files an interest discrepancy report
#            is built twice with the package's own function: with the listed actions, and with an amount in the
#            reports that is larger by 1.
# Expected:  the databases are equal. The package's README says that the report table, which it adds to the original
#            benchmark's database, leaves the scores unaffected.
# Observed:  the databases differ in all of these tasks, and only in that table. The tasks are scored by the
#            database, so an agent that reports another amount fails here. (tau2 itself, tag v1.0.1, declares no such
#            table; there the report is not stored.)
# Source:    inspect_evals/tau2/banking/BankingAgentTools.py, submit_interest_discrepancy_report_7294;
#            banking/data_model.py, TransactionalDB; banking/scorer.py, _build_expected_db.
# Matters:   the same conversation can have two scores, by the package that scored it. A comparison of banking results
#            must name the scorer.
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

from inspect_evals.tau2.banking.dataset import read_dataset
from inspect_evals.tau2.banking.scorer import _build_expected_db
from inspect_evals.tau2.common.metadata import Tau2MetaData

TOOL, TABLE = "submit_interest_discrepancy_report_7294", "interest_discrepancy_reports"


def reports(task):
    named = [action for action in task.evaluation_criteria.actions or [] if "agent_tool_name" in action.arguments]
    return [a for a in named if a.arguments["agent_tool_name"] == TOOL and "arguments" in a.arguments]


def database(task, change):
    task = deepcopy(task)  # a replay changes the initial state that it is given
    for action in reports(task):
        arguments = json.loads(action.arguments["arguments"])
        arguments["amount_difference"] += change
        action.arguments["arguments"] = json.dumps(arguments)
    return _build_expected_db(task.evaluation_criteria.actions, task.initial_state)


affected, unchanged = [], True
for sample in read_dataset("BankingAgent"):
    task = Tau2MetaData.model_validate(sample.metadata).task
    if not reports(task):
        continue
    affected.append(task.id)
    listed, again, other = (database(task, change) for change in (0, 0, 1))
    basis = [str(kind.value) for kind in task.evaluation_criteria.reward_basis]
    tables = [name for name in type(listed).model_fields if getattr(listed, name) != getattr(other, name)]
    print(f"{task.id}: scored by {basis}, {len(reports(task))} reports, tables that differ: {tables}")
    unchanged &= basis == ["DB"] and tables == [TABLE]
    unchanged &= listed.get_hash() == again.get_hash() != other.get_hash()
unchanged &= affected == [f"task_{number:03}" for number in range(93, 98)]
sys.exit(0 if unchanged else "changed: the databases differ from the description above")
PYTHON
