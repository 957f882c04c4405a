"""Options of every run: what is run, against what, and where it is told."""

from typing import Any

from pytest_trace2evolve.option_types import MOST_TRIALS, whole

GOALS = ("improve", "hold", "no-regression")
INCONCLUSIVE = ("fail", "pass")
BASELINE_MODES = ("save", "update", "new-only")

RUN: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--candidate", "--t2e-candidate"),
        {
            "dest": "t2e_candidate",
            "metavar": "ID",
            "help": "candidate to run: a file of candidates/ (default: v0)",
        },
    ),
    (
        ("--t2e-suite",),
        {"dest": "t2e_suite", "metavar": "NAME", "action": "append", "help": "run this suite (repeatable)"},
    ),
    (
        ("--t2e-replay",),
        {
            "dest": "t2e_replay",
            "metavar": "PATH",
            "action": "append",
            "help": "replay recorded runs from a tau2 results file or folder (repeatable)",
        },
    ),
    (
        ("--t2e-agent",),
        {"dest": "t2e_agent", "metavar": "NAME", "help": "agent: replay, chat, oracle, nop, or a plugin's"},
    ),
    (
        ("--t2e-trials",),
        {
            "dest": "t2e_trials",
            "metavar": "N",
            "type": whole(1, MOST_TRIALS),
            "help": "simulations a task (default: the suite's)",
        },
    ),
    (
        ("--t2e-baseline",),
        {
            "dest": "t2e_baseline",
            "metavar": "NAME|PATH",
            "help": "compare with a saved baseline or a results file (default: nearest ancestor's)",
        },
    ),
    (
        ("--t2e-save-baseline",),
        {"dest": "t2e_save_baseline", "metavar": "NAME", "help": "save this run as a baseline of its suites"},
    ),
    (
        ("--t2e-baseline-mode",),
        {
            "dest": "t2e_baseline_mode",
            "choices": BASELINE_MODES,
            "help": "where it exists: refuse (save, default), replace (update) or add tasks (new-only)",
        },
    ),
    (
        ("--t2e-gate",),
        {
            "dest": "t2e_gate",
            "metavar": "POLICY|off",
            "help": "gate policy (default: the ini key t2e_gate, or calibrated), or off",
        },
    ),
    (
        ("--t2e-goal",),
        {
            "dest": "t2e_goal",
            "choices": GOALS,
            "help": "claim to be better (improve, default), not worse (hold), or nothing: discard only on "
            "shown harm (no-regression)",
        },
    ),
    (
        ("--t2e-inconclusive",),
        {
            "dest": "t2e_inconclusive",
            "choices": INCONCLUSIVE,
            "help": "exit status of an inconclusive verdict: 10 (fail, default) or 0 (pass)",
        },
    ),
    (
        ("--t2e-run-folder",),
        {
            "dest": "t2e_run_folder",
            "metavar": "DIR",
            "help": "where to keep the run (default: below .trace2evolve/runs)",
        },
    ),
    (
        ("--t2e-summary",),
        {
            "dest": "t2e_summary",
            "metavar": "FILE",
            "action": "append",
            "help": "write the verdict to FILE as Markdown, or as JSON where it ends in .json (repeatable)",
        },
    ),
    (
        ("--t2e-case-budget",),
        {
            "dest": "t2e_case_budget",
            "metavar": "N",
            "type": whole(1, 10**6),
            "help": "simulations that one test with run_case may make (default: 200)",
        },
    ),
    (
        ("--t2e-evolve",),
        {
            "dest": "t2e_evolve",
            "action": "store_const",
            "const": True,
            "help": "then train adapters for what failing tests lack, and gate them (trace2evolve evolve)",
        },
    ),
    (
        ("--t2e-evolve-options",),
        {
            "dest": "t2e_evolve_options",
            "metavar": "TEXT",
            "help": "options of trace2evolve evolve, as '--most 2 --steps 20'",
        },
    ),
    (
        ("--t2e-freeze",),
        {
            "dest": "t2e_freeze",
            "action": "store_const",
            "const": True,
            "help": "add the cases on which such tests failed to synthetic/pressure.jsonl",
        },
    ),
    (
        ("--t2e-judge",),
        {
            "dest": "t2e_judge",
            "metavar": "MODEL",
            "help": "judge of natural-language assertions (OpenAI-compatible)",
        },
    ),
    (
        ("--t2e-judge-base-url",),
        {
            "dest": "t2e_judge_base_url",
            "metavar": "URL",
            "help": "the judge's endpoint (default: OPENAI_BASE_URL)",
        },
    ),
)
