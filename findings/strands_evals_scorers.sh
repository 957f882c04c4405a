#!/usr/bin/env bash
# Package:   strands-agents-evals 1.7.0 (2026-11-28)
# Input:     trajectories (lists of tool names) for the package's three scorers, which TrajectoryEvaluator gives to its
#            judge as tools: the expected trajectory itself, once with a repeated tool, and the expected trajectory
#            followed by one more call.
# Expected:  a trajectory that equals the expected one has the score 1.0 in each scorer, and one with an additional call
#            is no exact match.
# Observed:  the scorer for any order gives 0.5 to an equal trajectory of two calls of one tool: it counts matching
#            names as a set and divides by the length of the list. The scorer for the exact match gives 1.0 to the
#            trajectory with the additional call: it compares pairs up to the end of the shorter list.
# Source:    strands_evals/tools/evaluation_tools.py, any_order_match_scorer and exact_match_scorer.
# Matters:   the most lenient scorer is the one that rejects a correct retry, and the strictest one does not see an
#            unwanted call at the end. The judge reads these numbers as facts.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet strands-agents-evals==1.7.0
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import sys

from strands_evals.tools.evaluation_tools import any_order_match_scorer, exact_match_scorer, in_order_match_scorer

SCORERS = {"exact": exact_match_scorer, "in order": in_order_match_scorer, "any order": any_order_match_scorer}
PAIRS = {
    "equal": (["find", "refund"], ["find", "refund"]),
    "equal, repeated tool": (["find", "find"], ["find", "find"]),
    "one more call": (["find", "refund", "close_account"], ["find", "refund"]),
}
seen = {}
for pair, (actual, expected) in PAIRS.items():
    for name, scorer in SCORERS.items():
        seen[pair, name] = scorer(actual_trajectory=actual, expected_trajectory=expected)
        print(f"{pair}: {name} {seen[pair, name]}")
expected = dict.fromkeys(seen, 1.0) | {("equal, repeated tool", "any order"): 0.5}
sys.exit(0 if seen == expected else "changed: the scores differ from the description above")
PYTHON
