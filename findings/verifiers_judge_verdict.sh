#!/usr/bin/env bash
# Package:   verifiers 0.4.0 (2026-11-28)
# Input:     replies of a judge model for the built-in ReferenceJudge: the bare verdict, and the verdict with a reason
#            after it. The labels are the default ("yes", "no"), and ("A", "B"), which the config's description names.
# Expected:  the verdict at the start of the reply, or an error: the module says that a reply that cannot be parsed
#            raises instead of being scored.
# Observed:  "Yes. There is no difference." has the reward 0.0, as if the answer were "no", and "B. It names a different
#            city." has 1.0, as if it were "A". The parser takes the last label that stands as a word in the whole text,
#            in upper case, so the words "no" and "a" of the reason are verdicts. Bare verdicts are read as they are,
#            and so is "Verdict: yes" with the same reason.
# Source:    verifiers/v1/utils/score.py, parse_judge_choice (its last two lines); verifiers/v1/judges/reference.py,
#            ReferenceJudge.parse.
# Matters:   a judge that adds one sentence inverts rewards without an error, and more often with a model that explains
#            itself. Check the replies that trace.info["judge_calls"] keeps, or ask for "Verdict: yes".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet verifiers==0.4.0
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import sys

from verifiers.v1.judge import JudgeResponse
from verifiers.v1.judges.reference import ReferenceJudge, ReferenceJudgeConfig

REASON = "There is no difference."
REPLIES = {
    ("yes", "no"): ["yes", "no", f"Yes. {REASON}", f"Verdict: yes. {REASON}"],
    ("A", "B"): ["A", "B", "B. It names a different city."],
}
seen = {}
for choices, replies in REPLIES.items():
    judge = ReferenceJudge(ReferenceJudgeConfig(choices=choices))
    for reply in replies:
        seen[reply] = judge.parse(JudgeResponse(text=reply))
        print(f"labels {choices}, reply {reply!r}: reward {seen[reply]}")
expected = {
    "yes": 1.0,
    "no": 0.0,
    f"Yes. {REASON}": 0.0,
    f"Verdict: yes. {REASON}": 1.0,
    "A": 1.0,
    "B": 0.0,
    "B. It names a different city.": 1.0,
}
sys.exit(0 if seen == expected else "changed: the rewards differ from the description above")
PYTHON
