#!/usr/bin/env bash
# Package:   agentevals 0.0.9 (2026-11-28)
# Input:     two trajectories of one tool call. The agent's call has the argument of the reference and one more. They
#            are compared in each trajectory match mode, with tool_args_match_mode="superset" and "subset".
# Expected:  "superset" accepts the extra argument in each trajectory mode, and "subset" rejects it: the README defines
#            these modes by the arguments of the call compared with those of the reference. "unordered" accepts all
#            that "strict" accepts.
# Observed:  in the trajectory mode "subset" the two argument modes are exchanged: "superset" rejects the extra argument
#            and "subset" accepts it. In the mode "unordered" both reject it, so it rejects a trajectory that "strict"
#            accepts. A matcher function receives the reference as the agent's arguments in the mode "subset", and is
#            called in both directions in the mode "unordered".
# Source:    agentevals/trajectory/subset.py and unordered.py, _scorer, which call _is_trajectory_superset in
#            agentevals/trajectory/utils.py with the two trajectories exchanged.
# Matters:   the mode "subset" checks that an agent makes no call beyond the allowed ones. With these argument modes it
#            checks the opposite of what the test's author wrote, and gives a plain True or False.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet agentevals==0.0.9
cd "$work"
export LANGSMITH_TRACING=false
"$work/venv/bin/python" - <<'PYTHON'
import json
import sys

from agentevals.trajectory.match import create_trajectory_match_evaluator

REFERENCE, CALLED = {"query": "shoes"}, {"query": "shoes", "limit": 5}


def trajectory(arguments):
    call = {"type": "function", "function": {"name": "search", "arguments": json.dumps(arguments)}}
    return [
        {"role": "user", "content": "I look for shoes."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "a pair of shoes"},
        {"role": "assistant", "content": "There is one pair."},
    ]


def score(**modes):
    evaluator = create_trajectory_match_evaluator(**modes)
    return evaluator(outputs=trajectory(CALLED), reference_outputs=trajectory(REFERENCE))["score"]


def directions(mode):
    received = []

    def matcher(output, reference):
        received.append("as documented" if output == CALLED else "exchanged")
        return True

    score(trajectory_match_mode=mode, tool_args_match_overrides={"search": matcher})
    return received


accepted, received = {}, {}
for mode in ("strict", "superset", "subset", "unordered"):
    accepted[mode] = tuple(
        score(trajectory_match_mode=mode, tool_args_match_mode=arguments) for arguments in ("superset", "subset")
    )
    received[mode] = directions(mode)
    print(f"{mode}: accepts with superset {accepted[mode][0]}, with subset {accepted[mode][1]}; matcher {received[mode]}")
unchanged = accepted == {
    "strict": (True, False),
    "superset": (True, False),
    "subset": (False, True),
    "unordered": (False, False),
} and received == {
    "strict": ["as documented"],
    "superset": ["as documented"],
    "subset": ["exchanged"],
    "unordered": ["as documented", "exchanged"],
}
sys.exit(0 if unchanged else "changed: the scores differ from the description above")
PYTHON
