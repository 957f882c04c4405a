#!/usr/bin/env bash
# Packages:  inspect-ai 0.3.285 with inspect-evals 0.26.0 (2026-11-28)
# Input:     one retail task of tau2, run with the scripted model `mockllm/model` for both sides, without network. The
#            model's outputs are plain text, first without and then with token usage.
# Expected:  without usage, either the conversation happens or the sample and the eval are recorded as failed.
# Observed:  without usage, inspect-ai counts tokens with a tokenizer that it downloads. The download fails in every
#            turn. The user simulator catches each exception and prints it, so the eval ends with status "success",
#            no error in the sample, an empty trajectory and the score I. With usage the same eval has a conversation.
# Source:    inspect_evals/tau2/common/agents.py, user_simulator_agent (the handler in its loop).
# Matters:   status "success" does not show that an agent acted. A reader of such logs must treat a sample without an
#            assistant message as lost, not as a failure of the agent.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet inspect-ai==0.3.285 inspect-evals==0.26.0
cd "$work"
unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy
export TIKTOKEN_CACHE_DIR="$work/tokenizers" XDG_DATA_HOME="$work/data" XDG_CACHE_HOME="$work/cache"
"$work/venv/bin/python" - <<'PYTHON'
import socket
import sys

from inspect_ai import eval as run_eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_evals.tau2.tau2 import tau2_retail


def no_network(*args, **kwargs):
    raise OSError("this script runs without network")


socket.getaddrinfo = no_network


def scripted(usage):
    outputs = [ModelOutput.from_content("mockllm/model", "Hello.") for _ in range(20)]
    for output in outputs:
        output.usage = usage
    return get_model("mockllm/model", custom_outputs=outputs, memoize=False)


def observe(usage):
    task = tau2_retail(shuffle=False, message_limit=3)
    roles = {"user": scripted(usage)}
    (log,) = run_eval(task, model=scripted(usage), model_roles=roles, limit=1, display="none", log_dir="logs")
    (sample,) = log.samples
    spoken = len(sample.store["StoredAgentState:RetailAgent:trajectory"])
    score = sample.scores["retail_scorer"].value
    print(f"status {log.status}, error of the sample {sample.error}, {spoken} messages in the trajectory, score {score}")
    return log.status, sample.error, spoken, score


print("outputs without usage:")
without = observe(None)
print("outputs with usage:")
with_usage = observe(ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2))
unchanged = without == ("success", None, 0, "I") and with_usage == ("success", None, 6, "I")
sys.exit(0 if unchanged else "changed: the logs differ from the description above")
PYTHON
