"""The commands of the group `improve`, and their options."""

from pytest_trace2evolve.cli.parser import (
    BASE_URL_OPTION,
    DRY_RUN_OPTION,
    JSON_OPTION,
    JUDGE_OPTION,
    SUITE_OPTION,
    Command,
    check_positive,
    flag_option,
    integer_option,
    number_option,
    path_option,
    range_check,
    text_option,
)
from pytest_trace2evolve.improve.arguments import SEARCH_RUN_OPTIONS

CANDIDATE_OPTION = text_option(
    "--candidate", "ID", "candidate whose instruction the agent receives (default: none)"
)
RECIPE_OPTIONS = (
    text_option("--preset", None, "pocket, gpu or paper (default: pocket)", default="pocket"),
    path_option("--config", "FILE", "TOML file with recipe values"),
)
ENVIRONMENT_OPTIONS = (
    text_option("names", "NAME", "names of environments (default: all)", nargs="*"),
    integer_option("--difficulty", "D", "only this difficulty, from 1 to 5"),
    JSON_OPTION,
)
MODEL_OPTIONS = (
    text_option("--model", "MODEL", "model folder or model name (default: the embedded model)"),
    BASE_URL_OPTION,
    integer_option("--seeds", "N", "number of scenarios", range_check(2)),
    CANDIDATE_OPTION,
)
_MODEL_KEYS = ("api-key-env", "rollouts")
_MODEL_DEFAULTS = {"api_key_env": "OPENAI_API_KEY", "rollouts": 16}

CAPABILITIES = Command(
    "capabilities",
    "find the capabilities that failed traces lack",
    (
        "trace2evolve capabilities 2026-11-24T035034",
        "trace2evolve capabilities runs/retail.json --judge gpt-4.1-mini --dry-run",
    ),
    "improve:show_capabilities",
    (
        text_option(
            "runs",
            "RUN",
            "run id or its beginning, a run folder, or a results file",
            nargs="+",
        ),
        JUDGE_OPTION,
        DRY_RUN_OPTION,
        text_option(
            "--include-sealed",
            "SPLIT",
            "also learn from this split, which decides or guards; the access is recorded (repeatable)",
            action="append",
        ),
        SUITE_OPTION,
        JSON_OPTION,
    ),
    keys=("provider", "judge-base-url", "repeats", "coverage", "contrast"),
    defaults={"coverage": 0.1, "contrast": 0.2},
)

ENVIRONMENT = Command(
    "environment",
    "list, check, tune or synthesize capability environments",
    ("trace2evolve environment list", "trace2evolve environment tune precondition_verification"),
    actions=(
        Command(
            "list",
            "list environments with their rewards and calibrations",
            ("trace2evolve environment list",),
            "environment:list_environments",
            (JSON_OPTION,),
        ),
        Command(
            "check",
            "run every admission check on environments",
            ("trace2evolve environment check precondition_verification --seeds 100",),
            "environment:check",
            (
                *ENVIRONMENT_OPTIONS,
                integer_option("--seeds", "N", "number of scenarios", range_check(1), default=1000),
            ),
        ),
        Command(
            "tune",
            "find the difficulty at which a model can learn",
            (
                "trace2evolve environment tune precondition_verification",
                "trace2evolve environment tune --model gpt-4.1-mini --seeds 100",
            ),
            "environment:tune",
            (*ENVIRONMENT_OPTIONS, *MODEL_OPTIONS),
            keys=_MODEL_KEYS,
            defaults=_MODEL_DEFAULTS,
        ),
        Command(
            "synthesize",
            "let a model write the environment of a capability",
            ("trace2evolve environment synthesize refunds --writer gpt-4.1 --from-run 2026-11-24T035034",),
            "environment:synthesize",
            (
                text_option("capability", "CAPABILITY", "name of the capability, in snake_case"),
                text_option("--writer", "MODEL", "model that writes the environment", required=True),
                text_option(
                    "--description", "TEXT", "description of the capability; needed if no report describes it"
                ),
                text_option(
                    "--from-run",
                    "RUN",
                    "show the writer this run's failures that lack the capability (repeatable)",
                    action="append",
                    default=[],
                ),
                SUITE_OPTION,
                integer_option("--difficulty", "D", "only this difficulty, from 1 to 5"),
                JSON_OPTION,
                *MODEL_OPTIONS,
            ),
            keys=(*_MODEL_KEYS, "writer-base-url", "rounds"),
            defaults={**_MODEL_DEFAULTS, "rounds": 5},
        ),
    ),
)

TRAIN = Command(
    "train",
    "train an adapter or the router; rerun to resume",
    (
        "trace2evolve train --from-run 2026-11-24T035034 --steps 20",
        "trace2evolve train --router --base ./models/qwen3-0.6b",
    ),
    "improve:train",
    (
        text_option(
            "--capability", "NAME", "capability to train; several capabilities share one adapter", nargs="+"
        ),
        text_option(
            "--from-run", "RUN", "train one adapter for each capability that this run's failures lack"
        ),
        flag_option("--router", "train the router of ID+routed candidates, and measure it"),
        text_option("--adapter-name", "NAME", "name of the adapter (default: the capability)"),
        path_option("--base", "DIR", "the base model (default: the embedded model)"),
        *RECIPE_OPTIONS,
        integer_option("--steps", "N", "number of optimiser steps"),
        integer_option("--difficulty", "D", "only this difficulty, from 1 to 5"),
        CANDIDATE_OPTION,
        integer_option("--heldout", "N", "number of held-out scenarios", default=100),
    ),
    keys=("heldout-rollouts", "heldout-others"),
    defaults={"resumable": True, "heldout_rollouts": 4},
)

IMPROVE = Command(
    "improve",
    "propose candidates, keep what the gate promotes; rerun to resume",
    (
        "trace2evolve improve --suite support --proposer table --table sentences.toml",
        "trace2evolve improve --suite desk --proposer reflect --reflect-model gpt-4.1 --max-cost 20",
    ),
    "improve:improve",
    (
        text_option("--suite", "NAME", "only this suite", required=True),
        text_option("--candidate", "ID", "learn from failures of this candidate", default="v0"),
        text_option(
            "--proposer",
            None,
            "table: add a sentence of a file; ablate: drop a rule; parameters: change the sampling; "
            "reflect: a model reads failures and rewrites the instruction; gepa: the same in GEPA's way; "
            "adapters: train the model",
            choices=("table", "ablate", "parameters", "reflect", "gepa", "adapters"),
            required=True,
        ),
        path_option("--table", "FILE", "TOML file with the sentences of proposer table"),
        text_option("--reflect-model", "MODEL", "model of the proposers reflect and gepa"),
        integer_option(
            "--adapters", "N", "adapters whose mean is proposed (default: 2)", range_check(1, 64), default=2
        ),
        *RECIPE_OPTIONS,
        text_option("--baseline", "NAME|RUN", "evidence of the candidate (default: measure it)"),
        integer_option("--max-proposals", "N", "stop after N proposals", range_check(1)),
        integer_option("--max-simulations", "N", "make at most N simulations", range_check(1, 10**9)),
        number_option("--max-minutes", "M", "stop after M minutes", check_positive),
        number_option("--max-cost", "USD", "stop at this cost; needs prices.toml", check_positive),
        flag_option("--publish", "push the search's branch, and open a draft pull request with gh"),
        DRY_RUN_OPTION,
        JSON_OPTION,
        text_option("run_options", "-- OPTION", "options of pytest for each run, after --", nargs="*"),
    ),
    keys=(
        *("plateau", "reflect-base-url", "reflect-api-key-env"),
        *(option.name for option in SEARCH_RUN_OPTIONS if option.is_key),
    ),
    defaults={"resumable": True, "plateau": 20, "reflect_api_key_env": "OPENAI_API_KEY"},
)
