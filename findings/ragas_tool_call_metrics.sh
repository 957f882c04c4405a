#!/usr/bin/env bash
# Package:   ragas 0.4.3, with langchain-community 0.3.31, without which it cannot be imported (2026-11-28)
# Input:     conversations with tool calls, and reference calls, for the package's metrics ToolCallAccuracy (also with
#            strict_order=False) and ToolCallF1.
# Expected:  both metrics give 1.0 to a correct agent, and agree on which one is wrong. If the numbers of calls differ,
#            the accuracy is lowered by the covered part, as the class's description and its warning say.
# Observed:  the metrics are opposites in three cases. A task that needs no call and an agent that makes none: accuracy
#            1.0, F1 0.0. One call instead of two equal ones: accuracy 0.0, F1 1.0. An argument beyond those of the
#            reference: accuracy 1.0, F1 0.0. One missing call of two gives the accuracy 0.0 although the warning says
#            that the first call is compared: the names of the whole lists must be equal, so the penalty for coverage
#            never has an effect.
# Source:    ragas/metrics/collections/tool_call_accuracy (metric.py, ascore; util.py, exact_match_args) and
#            ragas/metrics/collections/tool_call_f1 (metric.py, ascore, which builds sets of calls).
# Matters:   the mean of either metric over a suite with refusals, retries or optional arguments ranks agents by these
#            rules, not by their calls.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet ragas==0.4.3 langchain-community==0.3.31
cd "$work"
export RAGAS_DO_NOT_TRACK=true
"$work/venv/bin/python" - <<'PYTHON'
import asyncio
import sys
import warnings

warnings.simplefilter("ignore")
from ragas.messages import AIMessage, HumanMessage, ToolCall  # noqa: E402
from ragas.metrics.collections import ToolCallAccuracy, ToolCallF1  # noqa: E402

FIND = ToolCall(name="find_order", args={"order": "7"})
FIND_ALL = ToolCall(name="find_order", args={"order": "7", "with_items": True})
REFUND = ToolCall(name="refund", args={"order": "7", "amount": 5})
CASES = {
    "equal calls": ([FIND, REFUND], [FIND, REFUND]),
    "no call, none expected": ([], []),
    "one of two equal calls": ([FIND], [FIND, FIND]),
    "one more argument": ([FIND_ALL], [FIND]),
    "one of two calls": ([FIND], [FIND, REFUND]),
}
METRICS = {"accuracy": ToolCallAccuracy(), "any order": ToolCallAccuracy(strict_order=False), "F1": ToolCallF1()}


async def observe():
    seen = {}
    for name, (called, reference) in CASES.items():
        talk = [HumanMessage(content="Please help."), AIMessage(content="", tool_calls=called)]
        results = [await m.ascore(user_input=talk, reference_tool_calls=reference) for m in METRICS.values()]
        seen[name] = tuple(result.value for result in results)
        print(name, dict(zip(METRICS, seen[name], strict=True)))
    return seen


seen = asyncio.run(observe())
expected = {
    "equal calls": (1.0, 1.0, 1.0),
    "no call, none expected": (1.0, 1.0, 0.0),
    "one of two equal calls": (0.0, 0.0, 1.0),
    "one more argument": (1.0, 1.0, 0.0),
    "one of two calls": (0.0, 0.0, 0.6667),
}
sys.exit(0 if seen == expected else "changed: the scores differ from the description above")
PYTHON
