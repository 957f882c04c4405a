"""The commands of `trace2evolve` and their options."""

import argparse

from pytest_trace2evolve.cli.parser import (
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
from pytest_trace2evolve.improve.arguments import add_evolve_arguments, add_run_options
from pytest_trace2evolve.utils.option_types import MOST_SEED

JSON = flag("--json", "print JSON")
AS_JSON = flag("--json", "as JSON")
PICTURE = path("--picture", "FILE", "write a picture (.svg or .png)")
PROVIDER = text("--provider", None, "the world's provider (default: inspect_evals)")
JUDGE_URL = text("--judge-base-url", "URL", "the judge's endpoint (default: OPENAI_BASE_URL)")
JUDGE = (text("--judge", "MODEL", "judge of natural-language assertions"), JUDGE_URL)
MARGIN = real("--margin", "M", "margin of the reward under hold", share)
CONTENT = text(
    "--content", None, "whose words (default: train)", choices=("train", "heldout"), default="train"
)
BASE_MODEL = path("--base", "DIR", "the base model (default: the embedded one)")
INSTRUCTION_OF = text("--candidate", "ID", "whose instruction the agent gets (default: none)")
RECIPE = (
    text("--preset", None, "pocket or gpu (default: pocket)", default="pocket"),
    path("--config", "FILE", "TOML with values of the recipe"),
)
HELDOUT_ROLLOUTS = whole("--heldout-rollouts", "K", "of each scenario (default: 4)", default=4)
ENVIRONMENTS = (
    text("names", "NAME", "environments (default: all)", nargs="*"),
    whole("--difficulty", "D", "one difficulty alone, from 1 to 5"),
    CONTENT,
    AS_JSON,
)
MEASURED_MODEL = (
    text("--model", "MODEL", "a folder, or a name (default: the embedded model)"),
    text("--base-url", "URL", "its endpoint (default: OPENAI_BASE_URL)"),
    text("--key-var", "NAME", "variable of its key", default="OPENAI_API_KEY"),
    whole("--seeds", "N", "scenarios (default: 100; in a folder 30)", at_least(2)),
    whole("--first", "SEED", "of the first scenario (default: 0)", at_least(0, MOST_SEED), default=0),
    whole("--rollouts", "K", "of each (default: 16)", at_least(2), default=16),
    INSTRUCTION_OF,
    real("--temperature", "T", "(default: the model's own, else 1)"),
    whole("--concurrency", "N", "at once (default: 64)", at_least(1, 4096), default=64),
)

INIT = Command(
    "init",
    "lay suites, candidates and a workflow out in a project",
    "project:init",
    (
        path("folder", "DIR", "where (default: --root, or here)", nargs="?"),
        text("--suites", "NAME,…", "which suites, or 'all' (default: support)", default="support"),
        Option(
            "--workflow",
            {
                "action": argparse.BooleanOptionalAction,
                "help": "add .github/workflows/agents.yml (default: at the top of a repository)",
            },
        ),
        flag("--dry-run", "only say what would be done"),
        JSON,
    ),
)

SCORE = Command(
    "score",
    "score recorded runs again by tau2's rules",
    "gate:score",
    (path("files", "FILE", "results files or folders", nargs="+"), JSON, PROVIDER, *JUDGE),
)

COMPARE = Command(
    "compare",
    "gate two sets of evidence",
    "gate:compare",
    (
        path("sides", "BASELINE CANDIDATE", nargs="*"),
        path("--baseline", "FILE", "for several files a side", action="append"),
        path("--candidate", "FILE", "for several files a side", action="append"),
        text("--policy", None, "gate policy (default: calibrated)"),
        text(
            "--goal",
            None,
            "improve (default), hold (not worse) or no-regression (discard only on shown harm)",
            choices=("improve", "hold", "no-regression"),
            default="improve",
        ),
        text("--suite", "NAME", "compare only this suite's tasks, as locked"),
        text("--split", "SPLIT", "compare only this split of the suite"),
        text("--provider", None, "the world's provider (default: inspect_evals, or the suite's)"),
        JSON,
        *JUDGE,
    ),
)

CALIBRATE = Command(
    "calibrate",
    "how often each policy errs on a suite's own trials",
    "gate:calibrate",
    (
        path("results", "RESULTS", "trials of one agent", nargs="+"),
        text("--policy", "P", "a policy (default: all there are)", action="append"),
        whole("--trials", "K", "trials a side (default: as many as most tasks have)", at_least(1, 10_000)),
        MARGIN,
        real("--effect", "E", "a planted effect (default: .05, .10)", share, action="append"),
        whole("--resamples", "R", "(default: 2000)", at_least(1, 100_000), default=2000),
        whole("--seed", None, "(default: 0)", at_least(0, MOST_SEED), default=0),
        flag("--live", "simulate fresh trials of broken tasks too"),
        PROVIDER,
        JSON,
        PICTURE,
        *JUDGE,
    ),
)

POWER = Command(
    "power",
    "what so many tasks and trials would show, by simulation",
    "gate:power",
    (
        whole("--tasks", "N", "tasks compared", at_least(2, 100_000), required=True),
        whole("--trials", "K", "trials of each task a side", at_least(1, 10_000), required=True),
        text("--agent", None, "a kind of agent (default: medium)", choices=("reliable", "medium", "noisy")),
        real("--rate", "P", "the agent's mean chance of success"),
        real("--spread", "S", "its standard deviation over tasks"),
        text("--policy", "P", "gate policy (default: calibrated)"),
        MARGIN,
        real("--alpha", "A", "level of the policy"),
        flag("--live", "broken tasks get fresh trials"),
        whole("--rows", "R", "comparisons a row (default: 2000)", at_least(100, 100_000), default=2000),
        whole("--seed", "N", "(default: 0)", at_least(0, MOST_SEED), default=0),
        JSON,
    ),
)

LOCK = Command(
    "lock",
    "write suites.lock from the suites and their worlds as they are",
    "evidence:lock",
    (
        text("suites", "SUITE", "renew these only", nargs="*"),
        flag("--check", "write nothing; exit 1 where a suite differs from its lock"),
    ),
)

LINT = Command(
    "lint",
    "check candidates, suites, their lock, baselines and rules offline",
    "evidence:lint",
    (text("--against", "COMMIT", "compare frozen candidates with it (default: HEAD)", default="HEAD"),),
)

BASELINES = Command(
    "baselines", "list saved baselines: age, candidate, lock, lineage", "evidence:baselines", (JSON,)
)

PROMOTE = Command(
    "promote",
    "make a promoted run the baseline of its suites",
    "evidence:promote",
    (
        text("run", "RUN", "a run's folder, or the beginning of its id"),
        text("--name", None, "name of the baseline (default: the candidate's id)"),
        text("--suite", "NAME", "only this suite (repeatable; default: all judged ones)", action="append"),
        flag("--dry-run", "check and print; write nothing"),
    ),
)

SHOW = Command(
    "show",
    "open a trace; an access to a sealed split is recorded",
    "evidence:show",
    (
        text("run", "RUN", "a run's id or how it begins, a run folder or a results file"),
        text("task", "TASK", "the task's id"),
        whole("--trial", "N", "which trial (default: the first)"),
        text("--suite", "NAME", "which suite of a run over several", default=""),
        flag("--full", "cut nothing"),
    ),
)

LEDGER = Command(
    "ledger",
    "who opened traces of which split, what was judged on it, and repair",
    "evidence:ledger",
    (
        text(
            "action",
            None,
            "accept the damage that the ledger has now, so that promotions are possible again",
            nargs="?",
            choices=("repair",),
        ),
        flag("--yes", "repair without asking"),
        text("--suite", "NAME", "only this suite"),
        text("--split", "SPLIT", "only this split"),
        JSON,
    ),
)

COMMENT = Command(
    "comment",
    "report a run to a pull request, in one comment that is updated",
    "evidence:comment",
    (
        path("file", "FILE", "what pytest --t2e-summary FILE.json wrote"),
        text("--repo", "OWNER/NAME", "repository (default: GITHUB_REPOSITORY)"),
        OneOf(
            (
                text(
                    "--pr",
                    "N",
                    "number of the pull request",
                    type=pattern("[1-9][0-9]{0,9}", "the number of a pull request"),
                ),
                text("--head", "OWNER:BRANCH", "or the branch that it comes from; then --sha is needed"),
            ),
            required=True,
        ),
        text(
            "--sha",
            "SHA",
            "the commit that was measured",
            type=pattern("[0-9a-f]{40}([0-9a-f]{24})?", "a whole commit id"),
        ),
        text("--key", None, "tells several comments of one pull request apart (default: its suites)"),
        text("--author", "LOGIN", "who writes the comment (default: the token's owner)"),
        text(
            "--run-url",
            "URL",
            "page of the job that measured",
            type=pattern("https?://[A-Za-z0-9._~:/?#%&=+-]+", "the address of a page"),
        ),
        flag("--untrusted", "the run was that of unreviewed code: say so"),
        flag("--best-effort", "exit 0 with one line where GitHub refuses or is away"),
    ),
)

CASES = Command(
    "cases",
    "generate, check or show synthetic cases",
    actions=(
        Command(
            "generate",
            "write cases from a seed, the families taking turns",
            "project:generate_cases",
            (
                text("--seed", "S", "the same seed gives the same cases", required=True),
                whole("--count", "N", "how many cases", at_least(1), required=True),
                path("--out", "FILE", "a new file; - prints them", required=True),
                text(
                    "--family", "NAME", "a family, or 'pressure' for those six; repeatable", action="append"
                ),
                CONTENT,
            ),
        ),
        Command(
            "check",
            "run all checks of admission on every case",
            "project:check_cases",
            (path("files", "FILE", nargs="+"),),
        ),
        Command(
            "show",
            "list a file's cases, or show one",
            "project:show_cases",
            (path("file", "FILE"), text("id", "ID", "a case's id, or how it begins", nargs="?")),
        ),
    ),
)

SERVE = Command(
    "serve",
    "an OpenAI-compatible endpoint over a model folder",
    "project:serve",
    (
        path("model", "MODEL", "a folder with config, weights and tokenizer"),
        text("--adapter", "NAME=PATH", "a LoRA adapter, asked for by NAME (repeatable)", action="append"),
        text("--name", None, "the model's name (default: its folder's)"),
        text("--host", None, "(default: 127.0.0.1)", default="127.0.0.1"),
        whole("--port", "N", "(default: a free one)", default=0),
        OneOf(
            (
                text(
                    "--token",
                    None,
                    "what requests must bring (default: TRACE2EVOLVE_TOKEN, else a random one that is "
                    "printed)",
                ),
                flag("--no-token", "serve every client that reaches the address"),
            )
        ),
        text("--device", None, "as torch names it (default: cuda where there is one, else cpu)"),
        text("--dtype", None, "as torch names it (default: float32 on cpu, else as stored)"),
        whole(
            "--threads",
            "N",
            "threads of torch (default: 1 for small models on cpu, else its own)",
            at_least(1, 1024),
        ),
        whole("--rows", "N", "requests decoded together (default: 64)", at_least(1, 4096), default=64),
        whole("--waiting", "N", "requests that may wait (default: 1024)", at_least(1, 100_000), default=1024),
        whole(
            "--prefix-cache",
            "MIB",
            "memory for what earlier prompts began with (default: 256; 0: none)",
            at_least(0),
            default=256,
        ),
        flag("--parent-pipe", "end when standard input closes"),
    ),
)

CAPABILITIES = Command(
    "capabilities",
    "which capabilities the failures of runs lack, by contrast with what passed",
    "improve:capabilities",
    (
        text("runs", "RUN|RESULTS", "a run's id or how it begins, a run folder, a results file", nargs="+"),
        OneOf(
            (
                text("--judge", "MODEL", "discover and label by this model"),
                flag("--rules", "label by rules, offline (default)"),
            )
        ),
        whole("--runs", "N", "runs of the judge (default: 10)", at_least(1, 10_000), dest="times"),
        JUDGE_URL,
        text("--judge-key-var", "NAME", "holds its key (default: OPENAI_API_KEY)"),
        flag("--no-cache", "ask the judge anew, and keep no answer"),
        flag("--dry-run", "only say what the judge would take"),
        text("--split", "NAME", "learn from a sealed split too; the ledger says so", action="append"),
        text("--suite", "NAME", "which suite of runs over several", default=""),
        PROVIDER,
        PICTURE,
        JSON,
    ),
)

ENVIRONMENT = Command(
    "environment",
    "list, check, calibrate or synthesize capability environments",
    actions=(
        Command(
            "list",
            "what there is, what each pays, and whether it is calibrated",
            "environment:list_environments",
            (AS_JSON,),
        ),
        Command(
            "check",
            "run every check of admission on environments",
            "environment:check",
            (*ENVIRONMENTS, whole("--seeds", "N", "scenarios (default: 1000)", at_least(1), default=1000)),
        ),
        Command(
            "calibrate",
            "find the difficulty at which a model can learn",
            "environment:calibrate",
            (*ENVIRONMENTS, *MEASURED_MODEL),
        ),
        Command(
            "synthesize",
            "have a model write the environment of a capability",
            "environment:synthesize",
            (
                text("capability", "CAPABILITY", "its name, in snake_case"),
                text("--judge", "MODEL", "the model that writes", required=True),
                text("--judge-base-url", "URL", "its endpoint (default: OPENAI_BASE_URL)"),
                text("--judge-key-var", "NAME", "variable of its key", default="OPENAI_API_KEY"),
                text("--description", "TEXT", "what it is, where no report says so"),
                text(
                    "--from-run",
                    "RUN|RESULTS",
                    "show failures of this run that lack it; repeatable",
                    action="append",
                    default=[],
                ),
                whole("--rounds", "N", "tries (default: 5)", at_least(1, 1000), default=5),
                whole("--difficulty", "D", "calibrate at one difficulty alone"),
                AS_JSON,
                *MEASURED_MODEL,
            ),
            defaults={"content": "train"},
        ),
    ),
)

TRAIN = Command(
    "train",
    "train an adapter for a capability; rerun to resume",
    "improve:train",
    (
        text("--capability", "NAME", "what is trained; several: one adapter", nargs="+"),
        text("--from-run", "RUN", "train an adapter for each capability that its failures lack"),
        text("--name", "NAME", "the adapter's name (default: the capability)"),
        BASE_MODEL,
        *RECIPE,
        whole("--seed", "N", "(default: 1)"),
        whole("--steps", "N", "steps of the optimiser"),
        whole("--difficulty", "D", "from 1 to 5 (default: what calibration found, else 1)"),
        INSTRUCTION_OF,
        path("--out", "DIR", "the adapter's folder (default: adapters/NAME)"),
        whole("--heldout", "N", "held-out scenarios (default: 100; 0: none)", default=100),
        whole(
            "--heldout-others",
            "M",
            "of each environment that is not trained (default: half as many; 0: none)",
        ),
        HELDOUT_ROLLOUTS,
    ),
    defaults={"resumable": True},
)

ROUTING = Command(
    "routing",
    "compare the router with oracle labels on held-out content",
    "improve:routing",
    (
        text(
            "capability",
            "NAME",
            "capabilities of the table (default: those of the promoted adapters of this base)",
            nargs="*",
        ),
        path("--base", "DIR", "the model (default: the embedded one)"),
        whole("--tasks", "N", "openings a label (default: 50)", at_least(1)),
        AS_JSON,
    ),
)

EVOLVE = Command(
    "evolve",
    "train adapters for what failing tests lack, and gate them; rerun to resume",
    "improve:evolve",
    (
        flag("--dry-run", "only print what it would take"),
        flag("--json", "the outcome as JSON"),
        text("run_options", "-- OPTION", "the same, behind --", nargs="*"),
    ),
    declare=(add_evolve_arguments, add_run_options),
    defaults={"resumable": True},
)

COMMANDS = (
    INIT,
    SCORE,
    COMPARE,
    CALIBRATE,
    POWER,
    LOCK,
    LINT,
    BASELINES,
    PROMOTE,
    SHOW,
    LEDGER,
    COMMENT,
    CASES,
    SERVE,
    CAPABILITIES,
    ENVIRONMENT,
    TRAIN,
    ROUTING,
    EVOLVE,
)
"""All commands, in the order of the help."""
