"""The commands of `trace2evolve`, by group, and their options.

An option name has the same meaning in every command and in the pytest plugin.
"""

import argparse

from pytest_trace2evolve.cli.import_commands import IMPORT, REVIEW
from pytest_trace2evolve.cli.improve_commands import CAPABILITIES, ENVIRONMENT, EVAL_ROUTER, EVOLVE, TRAIN
from pytest_trace2evolve.cli.parser import (
    CONTENT,
    JSON,
    JUDGE_URL,
    PLOT,
    PROVIDER,
    SPLIT,
    SUITE,
    Command,
    OneOf,
    Option,
    at_least,
    flag,
    path,
    pattern,
    real,
    share,
    text,
    whole,
)
from pytest_trace2evolve.utils.option_types import MOST_SEED

DRY_RUN = flag("--dry-run", "print what would be done; change nothing")
POLICY = text("--policy", None, "gate policy (default: calibrated)")
JUDGE = (text("--judge", "MODEL", "judge model, for natural-language assertions"), JUDGE_URL)
MARGIN = real("--margin", "M", "margin of the reward for goal hold", share)

INIT = Command(
    "init",
    "add suites, candidates and a CI workflow to a project",
    ("trace2evolve init", "trace2evolve init my-agent --suites support,tau2-retail"),
    "project:init",
    (
        path("folder", "DIR", "the project's folder (default: --root, or the current one)", nargs="?"),
        text("--suites", "NAME,…", "suites to add, or 'all' (default: support)", default="support"),
        Option(
            "--workflow",
            {
                "action": argparse.BooleanOptionalAction,
                "help": "add .github/workflows/agents.yml (default: at the top of a repository)",
            },
        ),
        DRY_RUN,
        JSON,
    ),
)

SCORE = Command(
    "score",
    "rescore recorded runs by tau2's rules",
    ("trace2evolve score runs/retail.json", "trace2evolve score runs/*.json.gz --json"),
    "gate:score",
    (path("files", "FILE", "results files or folders", nargs="+"), JSON, PROVIDER, *JUDGE),
)

COMPARE = Command(
    "compare",
    "compare two sets of recorded runs and print the gate's verdict",
    (
        "trace2evolve compare base.json.gz policy-v2.json.gz --suite tau2-retail",
        "trace2evolve compare base.json new.json --goal no-regression -v",
    ),
    "gate:compare",
    (
        path("sides", "BASELINE CANDIDATE", "results, folders, or names within baselines/", nargs="*"),
        path("--baseline-results", "FILE", "a file of the baseline (repeatable)", action="append"),
        path("--candidate-results", "FILE", "a file of the candidate (repeatable)", action="append"),
        POLICY,
        text(
            "--goal",
            None,
            "improve (default), hold (not worse) or no-regression (discard only on shown harm)",
            choices=("improve", "hold", "no-regression"),
            default="improve",
        ),
        SUITE,
        SPLIT,
        text("--provider", None, "the world's provider (default: inspect_evals, or the suite's)"),
        flag("--verbose", "print the figures of every check", "-v"),
        JSON,
        *JUDGE,
    ),
)

CALIBRATE = Command(
    "calibrate",
    "measure how often each policy errs on trials of a suite",
    (
        "trace2evolve calibrate runs/retail.json",
        "trace2evolve calibrate runs/*.json --policy strict --plot calibration.svg",
    ),
    "gate:calibrate",
    (
        path("results", "RESULTS", "trials of one agent", nargs="+"),
        text("--policy", None, "gate policy (repeatable; default: all)", action="append"),
        whole(
            "--trials", "K", "trials of each task a side (default: as most tasks have)", at_least(1, 10_000)
        ),
        MARGIN,
        real("--effect", "E", "a planted effect (repeatable; default: .05 and .10)", share, action="append"),
        whole(
            "--resamples", "R", "resampled comparisons (default: 2000)", at_least(1, 100_000), default=2000
        ),
        whole("--seed", "N", "seed (default: 0)", at_least(0, MOST_SEED), default=0),
        flag("--live", "simulate the reruns of a live run too"),
        PROVIDER,
        JSON,
        PLOT,
        *JUDGE,
    ),
)

POWER = Command(
    "power",
    "simulate what a number of tasks and trials can show",
    (
        "trace2evolve power --tasks 114 --trials 4",
        "trace2evolve power --tasks 56 --trials 3 --live --agent-profile noisy",
    ),
    "gate:power",
    (
        whole("--tasks", "N", "tasks compared", at_least(2, 100_000), required=True),
        whole("--trials", "K", "trials of each task a side", at_least(1, 10_000), required=True),
        text(
            "--agent-profile",
            None,
            "reliable, medium (default) or noisy",
            choices=("reliable", "medium", "noisy"),
        ),
        real("--rate", "P", "the agent's mean success rate"),
        real("--spread", "S", "standard deviation of the success rate over tasks"),
        POLICY,
        MARGIN,
        real("--alpha", "A", "significance level of the policy"),
        flag("--live", "simulate the reruns of a live run too"),
        whole(
            "--comparisons",
            "N",
            "simulated comparisons of each row (default: 2000)",
            at_least(100, 100_000),
            default=2000,
        ),
        whole("--seed", "N", "seed (default: 0)", at_least(0, MOST_SEED), default=0),
        JSON,
    ),
)

CASES = Command(
    "cases",
    "generate, check or show synthetic cases; review drafts",
    (
        "trace2evolve cases generate --seed 1 --count 20 --out synthetic/cases.jsonl",
        "trace2evolve cases show synthetic/cases.jsonl",
    ),
    actions=(
        Command(
            "generate",
            "generate cases from a seed, of all families in turn",
            ("trace2evolve cases generate --seed 1 --count 20 --out synthetic/cases.jsonl",),
            "project:generate_cases",
            (
                text("--seed", "S", "seed: an equal seed gives equal cases", required=True),
                whole("--count", "N", "number of cases", at_least(1), required=True),
                path("--out", "FILE", "a new file; - prints the cases", required=True),
                text(
                    "--family",
                    "NAME",
                    "a family, or 'pressure' for the six pressure families (repeatable)",
                    action="append",
                ),
                CONTENT,
            ),
        ),
        Command(
            "check",
            "run every admission check on each case of some files",
            ("trace2evolve cases check synthetic/cases.jsonl",),
            "project:check_cases",
            (path("files", "FILE", "files of cases", nargs="+"),),
        ),
        Command(
            "show",
            "list the cases of a file, or show one of them",
            ("trace2evolve cases show synthetic/cases.jsonl",),
            "project:show_cases",
            (
                path("file", "FILE", "a file of cases"),
                text("id", "ID", "a case's id, or the start of it", nargs="?"),
            ),
        ),
        REVIEW,
    ),
)

RUNS = Command(
    "runs",
    "list the runs of this project, the latest first",
    ("trace2evolve runs", "trace2evolve runs --json"),
    "evidence:runs",
    (JSON,),
)

SHOW = Command(
    "show",
    "show a trace, or list the failed tasks of a run",
    (
        "trace2evolve show 2026-11-24T035034 --failed",
        "trace2evolve show 2026-11-24T035034 return-02 --trial 1",
    ),
    "evidence:show",
    (
        text("run", "RUN", "a run's id or the start of it, a run folder or a results file"),
        text("task", "TASK", "a task's id; the access to a sealed split is recorded", nargs="?"),
        flag("--failed", "list the tasks that failed; opens no trace"),
        whole("--trial", "N", "trial to show (default: the first)"),
        SUITE,
        flag("--full", "show long messages in full"),
    ),
)

BASELINE = Command(
    "baseline",
    "list saved baselines, or promote a run to baseline",
    ("trace2evolve baseline list", "trace2evolve baseline promote 2026-11-24T035034"),
    actions=(
        Command(
            "list",
            "list saved baselines with age, candidate, lock and lineage",
            ("trace2evolve baseline list",),
            "evidence:list_baselines",
            (JSON,),
        ),
        Command(
            "promote",
            "make a promoted run the baseline of its suites",
            (
                "trace2evolve baseline promote 2026-11-24T035034 --dry-run",
                "trace2evolve baseline promote 2026-11-24T035034 --suite support",
            ),
            "evidence:promote",
            (
                text("run", "RUN", "a run's id or the start of it, or a run folder"),
                text("--name", None, "name of the baseline (default: the candidate's id)"),
                text("--suite", "NAME", "only this suite (repeatable; default: all judged)", action="append"),
                DRY_RUN,
            ),
        ),
    ),
)

LOCK = Command(
    "lock",
    "write suites.lock from the suites and their worlds",
    ("trace2evolve lock", "trace2evolve lock support"),
    "evidence:lock",
    (text("suites", "SUITE", "suites to lock again (default: all)", nargs="*"),),
)

CHECK = Command(
    "check",
    "check candidates, suites, suites.lock, baselines, runs and rules",
    ("trace2evolve check", "trace2evolve check --against origin/main"),
    "evidence:check",
    (
        text(
            "--against",
            "COMMIT",
            "compare frozen candidates with this commit (default: HEAD)",
            default="HEAD",
        ),
    ),
)

LEDGER = Command(
    "ledger",
    "show accesses to and tests of each split, or repair the ledger",
    ("trace2evolve ledger --suite support", "trace2evolve ledger repair"),
    "evidence:ledger",
    (
        text(
            "action",
            None,
            "accept the ledger's damage, so that promotions are possible again",
            nargs="?",
            choices=("repair",),
        ),
        flag("--yes", "repair without asking"),
        SUITE,
        SPLIT,
        JSON,
    ),
)

COMMENT = Command(
    "comment",
    "post or update a run's report on a pull request",
    (
        "trace2evolve comment summary.json --pr 12",
        "trace2evolve comment summary.json --pr 12 --repo me/agent --best-effort",
    ),
    "evidence:comment",
    (
        path("file", "FILE", "a file that pytest --t2e-summary FILE.json wrote"),
        text("--repo", "OWNER/NAME", "repository (default: GITHUB_REPOSITORY)"),
        OneOf(
            (
                text(
                    "--pr",
                    "N",
                    "number of the pull request",
                    type=pattern("[1-9][0-9]{0,9}", "the number of a pull request"),
                ),
                text("--head", "OWNER:BRANCH", "or the branch of the pull request; needs --sha"),
            ),
            required=True,
        ),
        text(
            "--sha",
            "SHA",
            "the commit that was evaluated",
            type=pattern("[0-9a-f]{40}([0-9a-f]{24})?", "a whole commit id"),
        ),
        text("--key", None, "tells several comments of one pull request apart (default: its suites)"),
        text("--author", "LOGIN", "author of the comment (default: the token's owner)"),
        text(
            "--run-url",
            "URL",
            "page of the CI job",
            type=pattern("https?://[A-Za-z0-9._~:/?#%&=+-]+", "the address of a page"),
        ),
        flag("--untrusted", "note in the comment that the run was of unreviewed code"),
        flag("--best-effort", "exit 0 with one line if GitHub rejects the comment or does not answer"),
    ),
)

SERVE = Command(
    "serve",
    "serve a model folder as an OpenAI-compatible endpoint",
    (
        "trace2evolve serve ./models/qwen3-0.6b --port 8000",
        "trace2evolve serve ./models/qwen3-0.6b --adapter refunds=adapters/refunds",
    ),
    "project:serve",
    (
        path("model", "MODEL", "a folder with configuration, weights and tokenizer"),
        text(
            "--adapter", "NAME=PATH", "a LoRA adapter, requested as model NAME (repeatable)", action="append"
        ),
        text("--served-model-name", "NAME", "the model's name (default: its folder's)"),
        text("--host", None, "address to listen on (default: 127.0.0.1)", default="127.0.0.1"),
        whole("--port", "N", "port to listen on (default: a free one)", default=0),
        OneOf(
            (
                text(
                    "--token",
                    None,
                    "bearer token of requests (default: TRACE2EVOLVE_TOKEN, else a random one)",
                ),
                flag("--no-token", "serve requests without a token"),
            )
        ),
        text("--device", None, "torch device (default: cuda if there is one, else cpu)"),
        text("--dtype", None, "torch dtype (default: float32 on cpu, else as stored)"),
        whole(
            "--threads",
            "N",
            "threads of torch (default: 1 for small models on cpu, else torch's)",
            at_least(1, 1024),
        ),
        whole("--batch-size", "N", "requests decoded together (default: 64)", at_least(1, 4096), default=64),
        whole(
            "--queue-size", "N", "requests that may wait (default: 1024)", at_least(1, 100_000), default=1024
        ),
        whole(
            "--prefix-cache",
            "MIB",
            "memory for the cache of prompt prefixes (default: 256; 0: none)",
            at_least(0),
            default=256,
        ),
        flag("--parent-pipe", "exit when standard input closes"),
    ),
)

COMMANDS = {
    "evaluate": (INIT, SCORE, COMPARE, CALIBRATE, POWER, CASES, IMPORT),
    "evidence": (RUNS, SHOW, BASELINE, LOCK, CHECK, LEDGER, COMMENT),
    "improve": (CAPABILITIES, ENVIRONMENT, TRAIN, EVAL_ROUTER, EVOLVE),
    "serve": (SERVE,),
}
"""All commands by group, in the order of the help."""
