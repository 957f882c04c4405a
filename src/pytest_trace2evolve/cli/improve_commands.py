"""The commands of the group `improve`, and their options."""

from pytest_trace2evolve.cli.parser import (
    CONTENT_OPTION,
    JSON_OPTION,
    JUDGE_URL_OPTION,
    PLOT_OPTION,
    PROVIDER_OPTION,
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
from pytest_trace2evolve.improve.arguments import add_evolve_arguments

BASE_MODEL_OPTION = path_option("--base", "DIR", "the base model (default: the embedded model)")
CANDIDATE_OPTION = text_option(
    "--candidate", "ID", "candidate whose instruction the agent receives (default: none)"
)
RECIPE_OPTIONS = (
    text_option("--preset", None, "pocket or gpu (default: pocket)", default="pocket"),
    path_option("--config", "FILE", "TOML file with recipe values"),
)
HELDOUT_ROLLOUTS_OPTION = integer_option(
    "--heldout-rollouts", "K", "rollouts of each held-out scenario (default: 4)", default=4
)
RAY_OPTION = text_option("--ray", "ADDRESS|auto", "run rollouts on a Ray cluster: its address, or auto")
ENVIRONMENT_OPTIONS = (
    text_option("names", "NAME", "names of environments (default: all)", nargs="*"),
    integer_option("--difficulty", "D", "only this difficulty, from 1 to 5"),
    CONTENT_OPTION,
    JSON_OPTION,
)
MODEL_OPTIONS = (
    text_option("--model", "MODEL", "model folder or model name (default: the embedded model)"),
    text_option("--base-url", "URL", "the model's endpoint (default: OPENAI_BASE_URL)"),
    text_option(
        "--api-key-env",
        "NAME",
        "environment variable that holds the API key (default: OPENAI_API_KEY)",
        default="OPENAI_API_KEY",
    ),
    integer_option(
        "--seeds", "N", "number of scenarios (default: 100; 30 for a model folder)", range_check(2)
    ),
    integer_option("--rollouts", "K", "rollouts of each scenario (default: 16)", range_check(2), default=16),
    CANDIDATE_OPTION,
    number_option("--temperature", "T", "temperature (default: the model's, else 1)"),
    integer_option(
        "--concurrency", "N", "concurrent rollouts (default: 64)", range_check(1, 4096), default=64
    ),
)

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
        text_option("--judge", "MODEL", "judge model, to discover and label capabilities (default: rules)"),
        integer_option(
            "--repeats",
            "N",
            "repeat the labelling (default: 10 with --judge, else 1)",
            range_check(1, 10_000),
        ),
        JUDGE_URL_OPTION,
        flag_option("--dry-run", "print the estimated cost of the judge; send no requests"),
        text_option(
            "--include-sealed",
            "SPLIT",
            "also learn from this split, which decides or guards; the access is recorded (repeatable)",
            action="append",
        ),
        SUITE_OPTION,
        PROVIDER_OPTION,
        PLOT_OPTION,
        JSON_OPTION,
    ),
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
                integer_option(
                    "--seeds", "N", "number of scenarios (default: 1000)", range_check(1), default=1000
                ),
                RAY_OPTION,
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
            (*ENVIRONMENT_OPTIONS, *MODEL_OPTIONS, RAY_OPTION),
        ),
        Command(
            "synthesize",
            "let a model write the environment of a capability",
            ("trace2evolve environment synthesize refunds --writer gpt-4.1 --from-run 2026-11-24T035034",),
            "environment:synthesize",
            (
                text_option("capability", "CAPABILITY", "name of the capability, in snake_case"),
                text_option("--writer", "MODEL", "model that writes the environment", required=True),
                text_option("--writer-base-url", "URL", "the writer's endpoint (default: OPENAI_BASE_URL)"),
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
                integer_option(
                    "--rounds", "N", "number of attempts (default: 5)", range_check(1, 1000), default=5
                ),
                integer_option("--difficulty", "D", "only this difficulty, from 1 to 5"),
                JSON_OPTION,
                *MODEL_OPTIONS,
            ),
            defaults={"content": "train"},
        ),
    ),
)

TRAIN = Command(
    "train",
    "train an adapter for a capability; rerun to resume",
    (
        "trace2evolve train --capability precondition_verification",
        "trace2evolve train --from-run 2026-11-24T035034 --steps 20",
    ),
    "improve:train",
    (
        text_option(
            "--capability", "NAME", "capability to train; several capabilities share one adapter", nargs="+"
        ),
        text_option(
            "--from-run", "RUN", "train one adapter for each capability that this run's failures lack"
        ),
        text_option("--adapter-name", "NAME", "name of the adapter (default: the capability)"),
        BASE_MODEL_OPTION,
        *RECIPE_OPTIONS,
        integer_option("--seed", "N", "seed (default: 1)"),
        integer_option("--steps", "N", "number of optimiser steps"),
        integer_option(
            "--difficulty", "D", "only this difficulty, from 1 to 5 (default: the tuned difficulty, else 1)"
        ),
        CANDIDATE_OPTION,
        path_option("--out", "DIR", "folder of the adapter (default: adapters/NAME)"),
        integer_option(
            "--heldout", "N", "number of held-out scenarios (default: 100; 0 for none)", default=100
        ),
        RAY_OPTION,
        integer_option(
            "--heldout-others",
            "M",
            "held-out scenarios of each other environment (default: half of --heldout; 0 for none)",
        ),
        HELDOUT_ROLLOUTS_OPTION,
    ),
    defaults={"resumable": True},
)

EVAL_ROUTER = Command(
    "eval-router",
    "measure the router against oracle labels on held-out content",
    ("trace2evolve eval-router", "trace2evolve eval-router precondition_verification --openings 20"),
    "improve:eval_router",
    (
        text_option(
            "capability",
            "NAME",
            "capabilities to choose from (default: those of the promoted adapters of the base model)",
            nargs="*",
        ),
        BASE_MODEL_OPTION,
        integer_option("--openings", "N", "conversation openings per label (default: 50)", range_check(1)),
        JSON_OPTION,
    ),
)

EVOLVE = Command(
    "evolve",
    "train and gate adapters for failed tasks; rerun to resume",
    (
        "trace2evolve evolve --candidate v6 --dry-run -- --t2e-suite support",
        "trace2evolve evolve --from-run 2026-11-24T035034 --max-adapters 2",
    ),
    "improve:evolve",
    (
        flag_option("--dry-run", "print the required budget; train nothing"),
        JSON_OPTION,
        text_option("run_options", "-- OPTION", "options of each run, such as --t2e-suite NAME", nargs="*"),
    ),
    declare_options=(add_evolve_arguments,),
    defaults={"resumable": True},
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
        text_option("--candidate", "ID", "learn from failures of this candidate (default: v0)", default="v0"),
        text_option(
            "--proposer",
            None,
            "table: add a sentence of a file; ablate: drop a rule; parameters: change the sampling; "
            "reflect: a model reads failures and rewrites the instruction; gepa: the same in GEPA's way",
            choices=("table", "ablate", "parameters", "reflect", "gepa"),
            required=True,
        ),
        path_option("--table", "FILE", "TOML file with the sentences of proposer table"),
        text_option("--reflect-model", "MODEL", "model of the proposers reflect and gepa"),
        text_option("--reflect-base-url", "URL", "its endpoint (default: OPENAI_BASE_URL)"),
        text_option(
            "--reflect-api-key-env",
            "NAME",
            "environment variable that holds its API key (default: OPENAI_API_KEY)",
            default="OPENAI_API_KEY",
        ),
        text_option("--baseline", "NAME|RUN", "evidence of the candidate (default: measure it)"),
        integer_option("--max-proposals", "N", "stop after N proposals", range_check(1)),
        integer_option("--max-simulations", "N", "make at most N simulations", range_check(1, 10**9)),
        number_option("--max-minutes", "M", "stop after M minutes", check_positive),
        number_option("--max-cost", "USD", "stop at this cost; needs prices.toml", check_positive),
        integer_option(
            "--plateau",
            "N",
            "stop after N proposals without a promotion (default: 20)",
            range_check(1),
            default=20,
        ),
        flag_option("--publish", "push the search's branch, and open a draft pull request with gh"),
        flag_option("--dry-run", "check the options and print the plan; run nothing"),
        JSON_OPTION,
        text_option("run_options", "-- OPTION", "options of pytest for each run, after --", nargs="*"),
    ),
    defaults={"resumable": True},
)
