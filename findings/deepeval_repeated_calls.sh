#!/usr/bin/env bash
# Package:   deepeval 4.3.1 (2026-11-28)
# Input:     test cases whose called tools equal the expected tools: three calls of one tool, as an agent makes them that
#            waits for a job. In the first case the calls have equal outputs, in the second they differ in the output.
# Expected:  the score of ToolCorrectnessMetric is 1.0 for equal lists of calls, with each setting of the order.
# Observed:  by default (order not considered) the first case has the score 1/3 and fails the default threshold of 0.5.
#            The reason names no missing tool, and lists equal expected and called tools. The second case has 1.0, and
#            so have both with should_consider_ordering or should_exact_match.
# Source:    deepeval/metrics/tool_correctness/tool_correctness.py, _calculate_non_exact_match_score, which keeps the
#            matched calls as a set; ToolCall.__eq__ compares name, input and output.
# Matters:   a repeated call with the same result counts once in the most lenient mode, so a correct agent that polls
#            fails, and more repetitions lower the score. Whether it fails depends on recorded outputs, which the metric
#            does not compare by default.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet deepeval==4.3.1
cd "$work"
export DEEPEVAL_TELEMETRY_OPT_OUT=1
"$work/venv/bin/python" - <<'PYTHON'
import sys

from deepeval.metrics import ToolCorrectnessMetric
from deepeval.models import DeepEvalBaseLLM
from deepeval.test_case import LLMTestCase, ToolCall


class Unused(DeepEvalBaseLLM):
    """The metric needs a model's object, but asks it nothing without a list of available tools."""

    def load_model(self):
        return self

    def generate(self, *args, **kwargs):
        raise AssertionError("asked")

    async def a_generate(self, *args, **kwargs):
        raise AssertionError("asked")

    def get_model_name(self):
        return "unused"


def calls(*outputs):
    return [ToolCall(name="get_status", input_parameters={"job": "7"}, output=output) for output in outputs]


SETTINGS = {"default": {}, "ordering": {"should_consider_ordering": True}, "exact": {"should_exact_match": True}}
OUTPUTS = {"equal outputs": ("running", "running", "running"), "other outputs": ("queued", "running", "done")}
seen = {}
for name, outputs in OUTPUTS.items():
    for setting, arguments in SETTINGS.items():
        metric = ToolCorrectnessMetric(model=Unused(), async_mode=False, **arguments)
        case = LLMTestCase(input="Wait.", tools_called=calls(*outputs), expected_tools=calls(*outputs))
        metric.measure(case, _show_indicator=False)
        seen[name, setting] = round(metric.score, 3), metric.success
        print(f"{name}, {setting}: score {metric.score:.3f}, success {metric.success}")
        if not metric.success:
            print(metric.reason)
expected = dict.fromkeys(seen, (1.0, True)) | {("equal outputs", "default"): (0.333, False)}
sys.exit(0 if seen == expected else "changed: the scores differ from the description above")
PYTHON
