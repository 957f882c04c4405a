"""Declares the commands of `trace2evolve` and their options.

An option name has the same meaning in every command and in the pytest plugin.
"""

import argparse

from pytest_trace2evolve.cli.import_commands import IMPORT, REVIEW
from pytest_trace2evolve.cli.improve_commands import CAPABILITIES, ENVIRONMENT, IMPROVE, TRAIN
from pytest_trace2evolve.cli.parser import (
    BASE_URL_OPTION,
    DRY_RUN_OPTION,
    JSON_OPTION,
    JUDGE_OPTION,
    SPLIT_OPTION,
    SUITE_OPTION,
    Command,
    Option,
    check_share,
    flag_option,
    integer_option,
    number_option,
    path_option,
    range_check,
    text_option,
)

POLICY_OPTION = text_option("--policy", None, "gate policy (default: calibrated)")
_EVIDENCE_KEYS = ("provider", "judge-base-url")
RESCORE_OPTION = flag_option("--rescore", "score all results again, and delete all stored figures")
MARGIN_OPTION = number_option("--margin", "M", "reward margin for goal hold", check_share)

INIT = Command(
    "init",
    "add suites, candidates and a CI workflow to a project",
    ("trace2evolve init --for own", "trace2evolve init my-agent --for support,tau2-retail"),
    "project:init",
    (
        path_option("folder", "DIR", "the project's folder (default: --root, or the current one)", nargs="?"),
        text_option(
            "--for",
            "own|support|tau2|SUITE,…",
            "own: a template for your own agent; support: the demo with its small model; tau2: "
            "tau2-bench; or names of suites, or all (default: ask on a terminal, else support)",
            dest="purpose",
        ),
        Option(
            "--workflow",
            {
                "action": argparse.BooleanOptionalAction,
                "help": "add .github/workflows/agents.yml (default: at the top of a repository)",
            },
        ),
        DRY_RUN_OPTION,
        JSON_OPTION,
    ),
)

SCORE = Command(
    "score",
    "rescore recorded runs by tau2's rules",
    ("trace2evolve score runs/retail.json", "trace2evolve score runs/*.json.gz --json"),
    "gate:score",
    (
        text_option("files", "RUN", "run ids or their beginnings, results files or folders", nargs="+"),
        JSON_OPTION,
        JUDGE_OPTION,
    ),
    keys=_EVIDENCE_KEYS,
)

GATE = Command(
    "gate",
    "gate what differs from a commit: candidates, agent, tasks",
    (
        "trace2evolve gate --against main --dry-run",
        "trace2evolve gate --against origin/main --output out -- --t2e-model gpt-4.1-mini -n 2",
    ),
    "gate:gate",
    (
        text_option("--against", "COMMIT", "the commit or branch to merge into", required=True),
        path_option("--output", "DIR", "folder for a run, a summary and a JUnit file of each candidate"),
        text_option("arguments", "-- OPTION", "options for each pytest session", nargs="*"),
        DRY_RUN_OPTION,
    ),
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
        text_option(
            "baseline",
            "BASELINE",
            "run id, name of a saved baseline, results file or folder; several files: FILE,FILE",
        ),
        text_option("candidate", "CANDIDATE", "the other side, named in the same way"),
        POLICY_OPTION,
        text_option(
            "--goal",
            None,
            "improve (default), hold (not worse) or no-regression (discard only if harm is shown)",
            choices=("improve", "hold", "no-regression"),
            default="improve",
        ),
        SUITE_OPTION,
        SPLIT_OPTION,
        flag_option("--verbose", "print the figures of every check", "-v"),
        path_option("--report", "FILE", "write the report page (HTML)"),
        JSON_OPTION,
        JUDGE_OPTION,
        RESCORE_OPTION,
    ),
    keys=_EVIDENCE_KEYS,
)

CALIBRATE = Command(
    "calibrate",
    "measure how often each policy errs, on recorded trials",
    (
        "trace2evolve calibrate runs/retail.json",
        "trace2evolve calibrate runs/*.json --policy strict --json",
    ),
    "gate:calibrate",
    (
        text_option(
            "results", "RESULTS", "trials of one agent: run ids, saved baselines or files", nargs="+"
        ),
        text_option("--policy", None, "gate policy (repeatable; default: all)", action="append"),
        integer_option("--trials", "K", "trials of each task on each side", range_check(1, 10_000)),
        MARGIN_OPTION,
        flag_option("--live", "also simulate the reruns of a live run"),
        JSON_OPTION,
        JUDGE_OPTION,
        RESCORE_OPTION,
    ),
    keys=(*_EVIDENCE_KEYS, "resamples"),
    defaults={"resamples": 2000},
)

POWER = Command(
    "power",
    "simulate what a number of tasks and trials can show",
    (
        "trace2evolve power --tasks 114 --trials 4",
        "trace2evolve power --tasks 114 --trials 8 --baseline-trials 16 --agent-profile noisy",
    ),
    "gate:show_power",
    (
        integer_option("--tasks", "N", "tasks compared", range_check(2, 100_000), required=True),
        integer_option(
            "--trials", "K", "trials of each task on each side", range_check(1, 10_000), required=True
        ),
        integer_option(
            "--baseline-trials",
            "K",
            "trials of a saved baseline: also simulate runs in stages, with their simulations",
            range_check(1, 10_000),
        ),
        text_option(
            "--agent-profile",
            "NAME|RATE,SPREAD",
            "reliable, medium (default), noisy, or the mean and standard deviation of its success rates",
        ),
        POLICY_OPTION,
        SUITE_OPTION,
        MARGIN_OPTION,
        flag_option("--live", "also simulate the reruns of a live run"),
        JSON_OPTION,
    ),
    keys=("resamples",),
    defaults={"resamples": 2000},
)

JUDGE = Command(
    "judge",
    "measure how well a judge agrees with hand labels",
    ("trace2evolve judge agreement labels.jsonl --judge gpt-4.1",),
    actions=(
        Command(
            "agreement",
            "compare a judge's answers on labelled traces with the labels, and record the agreement",
            ("trace2evolve judge agreement labels.jsonl --judge gpt-4.1 --json",),
            "gate:judge_agreement",
            (
                path_option("labels", "LABELS", "file of labels, one JSON object per line"),
                text_option("--judge", "MODEL", JUDGE_OPTION.settings["help"], required=True),
                JSON_OPTION,
            ),
            keys=("judge-base-url",),
        ),
    ),
)

CASE_CONTENT_OPTION = text_option(
    "--content",
    None,
    "wording: train (default) or heldout",
    choices=("train", "heldout"),
    default="train",
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
            "generate cases from a seed, cycling through all families",
            ("trace2evolve cases generate --seed 1 --count 20 --out synthetic/cases.jsonl",),
            "project:generate_cases",
            (
                text_option("--seed", "S", "seed; the same seed generates the same cases", required=True),
                integer_option("--count", "N", "number of cases", range_check(1), required=True),
                path_option("--out", "FILE", "file to create; - prints the cases", required=True),
                text_option(
                    "--family",
                    "NAME",
                    "a family, or 'pressure' for the six pressure families (repeatable)",
                    action="append",
                ),
                CASE_CONTENT_OPTION,
            ),
        ),
        Command(
            "from-failure",
            "generate variants of a failed case: the same demands, other records and wording",
            ("trace2evolve cases from-failure 2026-11-24T035034 policy_edge-1f0c --out variants.jsonl",),
            "project:vary_failure",
            (
                text_option("run", "RUN", "run id or its beginning, a run folder, or a results file"),
                text_option("task", "TASK", "id of a task that failed in this run"),
                path_option("--out", "FILE", "file to create", required=True),
                integer_option("--count", "N", "number of cases (default: 10)", range_check(1), default=10),
                integer_option("--trial", "N", "the trial that failed (default: the first one)"),
                SUITE_OPTION,
                CASE_CONTENT_OPTION,
            ),
        ),
        Command(
            "check",
            "run every admission check on cases, or on written tasks with their suite's world",
            ("trace2evolve cases check synthetic/cases.jsonl", "trace2evolve cases check tasks.yaml"),
            "project:check_cases",
            (
                path_option(
                    "files",
                    "FILE",
                    "files of cases or written tasks (default: the written tasks of all suites)",
                    nargs="*",
                ),
            ),
        ),
        Command(
            "show",
            "list the cases of a file, or show one of them",
            ("trace2evolve cases show synthetic/cases.jsonl",),
            "project:show_cases",
            (
                path_option("file", "FILE", "file of cases"),
                text_option("id", "ID", "id of a case, or its beginning", nargs="?"),
            ),
        ),
        REVIEW,
    ),
)

SHOW = Command(
    "show",
    "list the runs; show a run's failed tasks, its page, or a trace",
    ("trace2evolve show --serve", "trace2evolve show 2026-11-24T035034 return-02 --trial 1"),
    "evidence:show",
    (
        text_option(
            "run",
            "RUN",
            "run id or its beginning, a run folder, or a results file (default: list all runs)",
            nargs="?",
        ),
        text_option("task", "TASK", "id of a task; opening a sealed split's trace is recorded", nargs="?"),
        path_option("--report", "FILE", "write the report page (HTML)"),
        integer_option("--trial", "N", "trial to show (default: the first)"),
        SUITE_OPTION,
        flag_option("--full", "show long messages in full"),
        text_option(
            "--serve",
            "[HOST:]PORT",
            "serve runs, candidates, traces and the ledger to a browser (default: a free port of 127.0.0.1)",
            nargs="?",
            const="0",
        ),
        JSON_OPTION,
    ),
)

BASELINE = Command(
    "baseline",
    "list saved baselines, or promote a run to baseline",
    ("trace2evolve baseline list", "trace2evolve baseline promote 2026-11-24T035034"),
    actions=(
        Command(
            "list",
            "list saved baselines with their age, candidate, lock and lineage",
            ("trace2evolve baseline list",),
            "evidence:list_baselines",
            (JSON_OPTION,),
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
                text_option("run", "RUN", "run id or its beginning, or a run folder"),
                text_option("--name", None, "name of the baseline (default: the candidate's id)"),
                text_option(
                    "--suite",
                    "NAME",
                    "only this suite (repeatable; default: all suites that the run judged)",
                    action="append",
                ),
                DRY_RUN_OPTION,
            ),
        ),
        Command(
            "extend",
            "add trials to a saved baseline, by its own candidate",
            ("trace2evolve baseline extend --trials 16 v0 -- --t2e-model gpt-4.1-mini --t2e-max-cost 5",),
            "evidence:extend",
            (
                text_option("name", "NAME", "the saved baseline"),
                integer_option("--trials", "N", "trials of each task that it then has", required=True),
                text_option("arguments", "-- OPTION", "options for the pytest session", nargs="*"),
            ),
        ),
    ),
)

LOCK = Command(
    "lock",
    "write suites.lock from the suites and their worlds",
    ("trace2evolve lock", "trace2evolve lock support"),
    "evidence:lock",
    (text_option("suites", "SUITE", "suites to lock (default: all)", nargs="*"),),
)

CHECK = Command(
    "check",
    "check the project's files and evidence, or an endpoint",
    (
        "trace2evolve check --against origin/main",
        "trace2evolve check --model qwen3-8b --base-url http://127.0.0.1:8000/v1",
    ),
    "evidence:check",
    (
        text_option(
            "--against",
            "COMMIT",
            "compare frozen candidates with this commit (default: HEAD)",
            default="HEAD",
        ),
        text_option(
            "--model",
            "MODEL",
            "check the endpoint of this model instead: what works, is ignored or is refused",
        ),
        BASE_URL_OPTION,
    ),
    keys=("api-key-env",),
    defaults={"api_key_env": "OPENAI_API_KEY"},
)

LEDGER = Command(
    "ledger",
    "show the accesses and tests of each split, or repair the ledger",
    ("trace2evolve ledger --suite support", "trace2evolve ledger repair"),
    "evidence:show_ledger",
    (
        text_option(
            "action",
            None,
            "accept the damage to the ledger, so that candidates can be promoted again",
            nargs="?",
            choices=("repair",),
        ),
        flag_option("--yes", "repair without confirmation"),
        SUITE_OPTION,
        SPLIT_OPTION,
        JSON_OPTION,
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
        path_option("model", "MODEL", "folder with configuration, weights and tokenizer"),
        text_option(
            "--adapter",
            "NAME=PATH",
            "a LoRA adapter, or a router's file, requested as model NAME (repeatable)",
            action="append",
        ),
        text_option("--host", None, "address to listen on (default: 127.0.0.1)", default="127.0.0.1"),
        integer_option("--port", "N", "port to listen on (default: a free port)", default=0),
        flag_option("--no-token", "requests need no token (default: TRACE2EVOLVE_TOKEN, else a random one)"),
        flag_option("--parent-pipe", argparse.SUPPRESS),  # exit when the input of a run's server closes
    ),
    keys=("threads", "batch-size", "queue-size", "device"),
    defaults={"batch_size": 64, "queue_size": 1024},
)

EXPORT = Command(
    "export",
    "write a run for Inspect, OpenTelemetry or pandas",
    ("trace2evolve export csv 2026-11-24T035034", "trace2evolve export inspect results.json --output logs"),
    "export:export",
    (
        text_option("format", None, "format of the files", choices=("inspect", "otel", "csv")),
        text_option("run", "RUN", "run id or its beginning, a run folder, or a results file"),
        path_option("--output", "DIR", "folder of the files (default: RUN-FORMAT)"),
        flag_option("--sealed", "export the traces of sealed splits too; the ledger records each access"),
    ),
)

COMMANDS = {
    "evaluate": (INIT, GATE, SCORE, COMPARE, CALIBRATE, POWER, JUDGE, CASES, IMPORT),
    "evidence": (SHOW, EXPORT, BASELINE, LOCK, CHECK, LEDGER),
    "improve": (IMPROVE, CAPABILITIES, ENVIRONMENT, TRAIN),
    "serve": (SERVE,),
}
"""All commands by group, in the order of the help."""
