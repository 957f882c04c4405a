#!/usr/bin/env bash
# Packages:  opentelemetry-instrumentation-openai-v2 2.4b0, with openai 3.57.0 (2026-11-28)
# Input:     `pip install` of that instrumentation, then an import of its top module.
# Expected:  pip resolves a set of releases with which the module can be imported.
# Observed:  the import fails twice. First httpx is absent: openai_v2/utils.py imports it, but the package does not
#            require it, and openai 3.57.0 brings httpx2 instead. With httpx present, openai_v2/instruments.py
#            imports opentelemetry.util.genai.instruments, which the util-genai that pip chooses (1.3b0 today) no
#            longer has: the requirement on opentelemetry-util-genai has a lower bound but no upper bound.
#            With opentelemetry-util-genai==0.4b0 and httpx the import works.
# Source:    openai_v2/utils.py and openai_v2/instruments.py (import statements); package metadata (Requires-Dist).
# Matters:   an agent whose instrumentation cannot be imported writes no spans. A reader of its logs sees an empty
#            export and cannot distinguish it from an agent that made no model calls.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
py="$work/venv/bin/python"
"$py" -m pip install --quiet opentelemetry-instrumentation-openai-v2==2.4b0 openai==3.57.0

check() { # check DESCRIPTION EXPECTED: import the module and compare the outcome
    local outcome
    outcome=$("$py" -c '
try:
    import opentelemetry.instrumentation.openai_v2
    print("imported")
except ModuleNotFoundError as error:
    print(f"missing {error.name}")')
    echo "$1: $outcome"
    if [[ "$outcome" != "$2" ]]; then
        echo "changed: expected '$2'" >&2
        exit 1
    fi
}

"$py" -c '
from importlib.metadata import requires, version
print("requirement:", *[r for r in requires("opentelemetry-instrumentation-openai-v2") if "util-genai" in r])
print("chosen by pip: opentelemetry-util-genai", version("opentelemetry-util-genai"))'
check "as pip resolves it" "missing httpx"
"$py" -m pip install --quiet httpx==0.28.1
check "with httpx" "missing opentelemetry.util.genai.instruments"
"$py" -m pip install --quiet opentelemetry-util-genai==0.4b0
check "with httpx and util-genai 0.4b0" "imported"
