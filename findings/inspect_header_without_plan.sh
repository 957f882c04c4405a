#!/usr/bin/env bash
# Packages:  inspect-ai 0.3.285 (2026-11-28)
# Input:     a log in version 2 of the JSON format with the fields that the class EvalLog requires, and its status,
#            statistics and samples. It has no field "plan", for which the class has a default.
# Expected:  read_eval_log reads the log, whole or only its header, because the class accepts it.
# Observed:  the whole log is read, with an empty plan. With header_only=True, reading ends with an AssertionError
#            "Must encounter a 'plan'", and so does samples_df of the package's analysis module.
# Source:    inspect_ai/log/_recorders/json.py, _read_header_streaming, which asserts each field of the header.
# Matters:   a tool that writes logs from the published schema, or from EvalLog's required fields, writes logs that
#            open one by one, but not in the list of the viewer and not as data frames. Write an empty plan.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet inspect-ai==0.3.285
cd "$work"
export XDG_DATA_HOME="$work/data" XDG_CACHE_HOME="$work/cache"
"$work/venv/bin/python" - <<'PYTHON'
import json
import sys

from inspect_ai.log import EvalLog, read_eval_log

log = {
    "version": 2,
    "status": "success",
    "eval": {"created": "2026-11-29T12:00:00+00:00", "task": "desk", "dataset": {}, "model": "m/m", "config": {}},
    "stats": {"started_at": "2026-11-29T12:00:00+00:00", "completed_at": "2026-11-29T12:00:01+00:00"},
    "samples": [{"id": "a", "epoch": 1, "input": "Hello", "target": "", "messages": []}],
}
EvalLog.model_validate(log)
with open("2026-11-29T12-00-00+00-00_desk_a.json", "w") as file:
    json.dump(log, file)
whole = read_eval_log(file.name)
print(f"whole log: status {whole.status}, {len(whole.samples)} sample, plan {whole.plan.name!r}")
try:
    read_eval_log(file.name, header_only=True)
    header = "read"
except AssertionError as error:
    header = f"AssertionError: {error}"
print(f"header only: {header}")
unchanged = whole.status == "success" and header == "AssertionError: Must encounter a 'plan'"
sys.exit(0 if unchanged else "changed: reading differs from the description above")
PYTHON
