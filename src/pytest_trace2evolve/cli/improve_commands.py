"""The commands of group `improve`, and their options."""

from pytest_trace2evolve.cli.parser import (
    CONTENT,
    JSON,
    JUDGE_URL,
    PLOT,
    PROVIDER,
    SUITE,
    Command,
    OneOf,
    at_least,
    flag,
    path,
    real,
    text,
    whole,
)
from pytest_trace2evolve.improve.arguments import add_evolve_arguments, add_run_options
from pytest_trace2evolve.utils.option_types import MOST_SEED

BASE_MODEL = path("--base", "DIR", "the base model (default: the embedded model)")
INSTRUCTION_OF = text("--candidate", "ID", "candidate whose instruction the agent gets (default: none)")
RECIPE = (
    text("--preset", None, "pocket or gpu (default: pocket)", default="pocket"),
    path("--config", "FILE", "TOML file with values of the recipe"),
)
HELDOUT_ROLLOUTS = whole(
    "--heldout-rollouts", "K", "rollouts of each held-out scenario (default: 4)", default=4
)
RAY = text("--ray", "ADDRESS|auto", "make rollouts on a Ray cluster: its address, or auto")
ENVIRONMENTS = (
    text("names", "NAME", "environments (default: all)", nargs="*"),
    whole("--difficulty", "D", "only this difficulty, from 1 to 5"),
    CONTENT,
    JSON,
)
MEASURED_MODEL = (
    text("--model", "MODEL", "a folder or a name (default: the embedded model)"),
    text("--base-url", "URL", "the model's endpoint (default: OPENAI_BASE_URL)"),
    text(
        "--api-key-env",
        "NAME",
        "environment variable that holds the API key (default: OPENAI_API_KEY)",
        default="OPENAI_API_KEY",
    ),
    whole("--seeds", "N", "scenarios (default: 100; 30 for a model in a folder)", at_least(2)),
    whole(
        "--first-seed", "SEED", "seed of the first scenario (default: 0)", at_least(0, MOST_SEED), default=0
    ),
    whole("--rollouts", "K", "rollouts of each scenario (default: 16)", at_least(2), default=16),
    INSTRUCTION_OF,
    real("--temperature", "T", "temperature (default: the model's own, else 1)"),
    whole("--concurrency", "N", "rollouts at once (default: 64)", at_least(1, 4096), default=64),
)

CAPABILITIES = Command(
    "capabilities",
    "find the capabilities that failed runs lack",
    (
        "trace2evolve capabilities 2026-11-24T035034",
        "trace2evolve capabilities runs/retail.json --judge gpt-4.1-mini --dry-run",
    ),
    "improve:capabilities",
    (
        text(
            "runs",
            "RUN",
            "a run's id or the start of it, a run folder, or a results file",
            nargs="+",
        ),
        OneOf(
            (
                text("--judge", "MODEL", "judge model, to discover and label capabilities"),
                flag("--rules", "label by rules, offline (default)"),
            )
        ),
        whole(
            "--repeats", "N", "repeat the labelling (default: 10 with --judge, else 1)", at_least(1, 10_000)
        ),
        JUDGE_URL,
        text(
            "--judge-api-key-env",
            "NAME",
            "environment variable that holds the judge's API key (default: OPENAI_API_KEY)",
        ),
        flag("--no-cache", "ask the judge again, and store no answer"),
        flag("--dry-run", "print what the judge would cost; ask nothing"),
        text(
            "--include-sealed",
            "SPLIT",
            "learn from this sealed split too; the access is recorded (repeatable)",
            action="append",
        ),
        SUITE,
        PROVIDER,
        PLOT,
        JSON,
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
            (JSON,),
        ),
        Command(
            "check",
            "run every admission check on environments",
            ("trace2evolve environment check precondition_verification --seeds 100",),
            "environment:check",
            (
                *ENVIRONMENTS,
                whole("--seeds", "N", "scenarios (default: 1000)", at_least(1), default=1000),
                RAY,
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
            (*ENVIRONMENTS, *MEASURED_MODEL, RAY),
        ),
        Command(
            "synthesize",
            "let a model write the environment of a capability",
            ("trace2evolve environment synthesize refunds --writer gpt-4.1 --from-run 2026-11-24T035034",),
            "environment:synthesize",
            (
                text("capability", "CAPABILITY", "the capability's name, in snake_case"),
                text("--writer", "MODEL", "the model that writes", required=True),
                text("--writer-base-url", "URL", "the writer's endpoint (default: OPENAI_BASE_URL)"),
                text(
                    "--writer-api-key-env",
                    "NAME",
                    "environment variable that holds the writer's API key (default: OPENAI_API_KEY)",
                    default="OPENAI_API_KEY",
                ),
                text("--description", "TEXT", "what the capability is, if no report says so"),
                text(
                    "--from-run",
                    "RUN",
                    "show the writer failures of this run that lack the capability (repeatable)",
                    action="append",
                    default=[],
                ),
                whole("--rounds", "N", "attempts (default: 5)", at_least(1, 1000), default=5),
                whole("--difficulty", "D", "only this difficulty, from 1 to 5"),
                JSON,
                *MEASURED_MODEL,
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
        text("--capability", "NAME", "capability to train; several train one adapter", nargs="+"),
        text("--from-run", "RUN", "train an adapter for each capability that this run's failures lack"),
        text("--adapter-name", "NAME", "the adapter's name (default: the capability)"),
        BASE_MODEL,
        *RECIPE,
        whole("--seed", "N", "seed (default: 1)"),
        whole("--steps", "N", "steps of the optimiser"),
        whole("--difficulty", "D", "only this difficulty, from 1 to 5 (default: the tuned one, else 1)"),
        INSTRUCTION_OF,
        path("--out", "DIR", "the adapter's folder (default: adapters/NAME)"),
        whole("--heldout", "N", "held-out scenarios (default: 100; 0: none)", default=100),
        RAY,
        whole(
            "--heldout-others",
            "M",
            "held-out scenarios of each other environment (default: half of --heldout; 0: none)",
        ),
        HELDOUT_ROLLOUTS,
    ),
    defaults={"resumable": True},
)

EVAL_ROUTER = Command(
    "eval-router",
    "measure the router against oracle labels on held-out content",
    ("trace2evolve eval-router", "trace2evolve eval-router precondition_verification --openings 20"),
    "improve:eval_router",
    (
        text(
            "capability",
            "NAME",
            "capabilities to choose from (default: those of the promoted adapters of the base model)",
            nargs="*",
        ),
        BASE_MODEL,
        whole("--openings", "N", "conversation openings of each label (default: 50)", at_least(1)),
        JSON,
    ),
)

EVOLVE = Command(
    "evolve",
    "train and gate adapters for failed tasks; rerun to resume",
    (
        "trace2evolve evolve --candidate v6 --t2e-suite support --dry-run",
        "trace2evolve evolve --from-run 2026-11-24T035034 --max-adapters 2",
    ),
    "improve:evolve",
    (
        flag("--dry-run", "print the budget that is needed; train nothing"),
        JSON,
        text("run_options", "-- OPTION", "options of each run, behind --", nargs="*"),
    ),
    declare=(add_evolve_arguments, add_run_options),
    defaults={"resumable": True},
)
