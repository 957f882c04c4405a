"""Describes a run in three sentences: the decision, its reason and the next step.

The terminal and Markdown share the first sentence, and each passes a function that quotes untrusted names.
"""

import math
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import PurePath

from pytest_trace2evolve.records.verdict import (
    COVERAGE_CHECKS,
    CheckResult,
    CheckStatus,
    Decision,
    Goal,
    Label,
    NeededEvidence,
    Obstacle,
    RunSummary,
    Verdict,
)
from pytest_trace2evolve.report.figures import (
    CHECK_NAMES,
    _signed_points,
    change_text,
    detectable_text,
    interval_text,
    p_text,
)
from pytest_trace2evolve.report.formatting import (
    format_count,
    format_dollars,
)
from pytest_trace2evolve.utils.sanitize import sanitize_line

OBSTACLE_TEXTS: Mapping[Obstacle | None, str] = {
    Obstacle.WRONG_DIRECTION: "the change points the wrong way",
    Obstacle.TOO_SMALL: "the effect is too small to detect with these tasks",
    None: "neither more trials nor more tasks would settle it",
}
"""Texts for the reasons why no additional evidence would settle a check. None stands for an unrecorded reason
in an older file."""

_OBSTACLE_SUFFIXES: Mapping[Obstacle | None, str] = {
    Obstacle.WRONG_DIRECTION: ", the wrong way",
    Obstacle.TOO_SMALL: ", too small to detect with these tasks",
    None: "",
}

_CLAIM_TEXTS = {
    Goal.IMPROVE: ("is better than {}", "is not shown to be better than {}"),
    Goal.HOLD: ("is not worse than {}", "is not shown to be no worse than {}"),
    Goal.NO_REGRESSION: ("shows no regression against {}", "is not shown to be free of regressions"),
}
"""Texts for the claim of each goal, if it is shown and if it is open."""

FIXED_TASKS_TEXT = "says nothing about other tasks"
"""The scope of a verdict with estimand `suite`."""

Quote = Callable[[str], str]
"""A function that quotes an untrusted name for output."""


def is_guard(verdict: Verdict) -> bool:
    """Whether a verdict is about a guard split, which can only block or discard."""
    return verdict.guard is not None or verdict.label in (Label.TRANSFER, Label.SYNTHETIC)


def deciding_verdicts(summary: RunSummary) -> list[Verdict]:
    """Return the verdicts that determine the run's decision: open claims first, guards last."""
    verdicts = [verdict for suite in summary.suites for verdict in suite.verdicts]
    return sorted(
        (verdict for verdict in verdicts if verdict.decision and verdict.decision is summary.decision),
        key=lambda verdict: (is_guard(verdict), bool(_suspected_harm(verdict))),
    )


def _changed_code(summary: RunSummary) -> list[str]:
    """The files of the agent's code that differ from the baseline's, over all suites."""
    sides = [suite.compared for suite in summary.suites if suite.compared is not None]
    return list(dict.fromkeys(name for side in sides for name in side.changed_code))


def is_working_tree(summary: RunSummary) -> bool:
    """Whether the run compares an edited candidate, or edited code, with the same candidate's baseline."""
    sides = [suite.compared for suite in summary.suites if suite.compared is not None]
    return bool(sides) and all(side.is_same_candidate for side in sides)


def subject(summary: RunSummary, quote: Quote) -> str:
    """Name what the run measured: the candidate, and the agent's code if it differs from the baseline's."""
    name = quote(summary.candidate)
    code = _changed_code(summary)
    if is_working_tree(summary):
        return f"the working tree (changed: {_first_names(code, quote) if code else name})"
    return f"{name} and changed code ({_first_names(code, quote)})" if code else name


def _first_names(names: Sequence[str], quote: Quote) -> str:
    more_text = f" and {len(names) - 2} more" if names[2:] else ""
    return ", ".join(map(quote, names[:2])) + more_text


def _revision(summary: RunSummary) -> str:
    """Return what there is to revise, as the object of a sentence."""
    code = _first_names(_changed_code(summary), sanitize_line)
    if is_working_tree(summary):
        return f"the change of {code or summary.candidate}"
    return f"{summary.candidate} or the change of {code}" if code else summary.candidate


def headline(summary: RunSummary, quote: Quote, baseline: str, names: Mapping[str, str] | None = None) -> str:
    """Return the decision as a sentence that names confirmed regressions first, without the decision's name.

    Args:
        summary: The run, which must have a decision.
        quote: Quotes an untrusted name.
        baseline: The baseline's name, quoted.
        names: Names to show instead of check ids.
    """
    verdicts = [verdict for suite in summary.suites for verdict in suite.verdicts]
    confirmed = list(dict.fromkeys(task for verdict in verdicts for task in verdict.regressions))
    text = _headline(summary, quote, baseline, names or {})
    return f"confirmed regressions: {_first_names(confirmed, quote)}; {text}" if confirmed else text


def _headline(summary: RunSummary, quote: Quote, baseline: str, names: Mapping[str, str]) -> str:
    candidate, deciding = subject(summary, quote), deciding_verdicts(summary)
    verdicts = [verdict for suite in summary.suites for verdict in suite.verdicts]
    shown_claim, open_claim = (claim.format(baseline) for claim in _CLAIM_TEXTS[_deciding_goal(verdicts)])

    def quoted_names(ids: Iterable[str]) -> list[str]:
        return [quote(name) for name in dict.fromkeys(names.get(name, name) for name in ids)]

    if summary.decision is Decision.PROMOTE:
        n_suspected = sum(len(verdict.suspected) for verdict in verdicts)
        risks = [f"suspected regressions: {n_suspected}"] if n_suspected else []
        risks += [
            f"more agent errors: {check.detail}"
            for verdict in verdicts
            for check in verdict.checks
            if check.id == "agent_errors" and (check.estimate or 0) > 0
        ]
        claim = f"{candidate} {shown_claim}"
        if _deciding_goal(verdicts) is Goal.NO_REGRESSION:
            claim = f"no regression of {candidate} against {baseline} detected"
            risks.insert(0, _missed_drop_text(deciding))
        return "; ".join(filter(None, [claim, *risks]))
    if summary.decision is Decision.DISCARD:
        failed_names = quoted_names(
            sorted({check.id for verdict in deciding for check in _checks_with(verdict, CheckStatus.FAIL)})
        )
        rest_text = f" and {len(failed_names) - 3} more checks" if failed_names[3:] else ""
        return f"{candidate} fails " + (
            f"on {', '.join(failed_names[:3])}{rest_text}" if failed_names else "the gate"
        )
    if any(verdict.partial for verdict in verdicts):
        return f"{candidate} was not measured completely"
    if deciding and is_guard(deciding[0]):
        split_name = " · ".join(quote(name) for name in (deciding[0].suite, deciding[0].split) if name)
        more_text = f" and {len(deciding) - 1} more" if deciding[1:] else ""
        claim_text = (
            f"{candidate} {shown_claim}, but " if any(not is_guard(verdict) for verdict in verdicts) else ""
        )
        return f"{claim_text}harm on {split_name}{more_text} is not ruled out"
    if deciding and (resultless := [check.id for check in deciding[0].checks if has_no_result(check)]):
        return (
            f"{candidate} {open_claim}, because a check has no result: {', '.join(quoted_names(resultless))}"
        )
    if deciding and (harm := _suspected_harm(deciding[0])):
        return f"{candidate} {shown_claim}, but harm is suspected: {', '.join(quoted_names(harm))}"
    return f"{candidate} {open_claim}"


def _missed_drop_text(verdicts: Sequence[Verdict]) -> str:
    """Say which drop would have been detected on every split that decides; empty if it is not known."""
    drops = [verdict.detectable for verdict in verdicts if not is_guard(verdict)]
    known_drops = [drop for drop in drops if drop is not None]
    if not known_drops or len(known_drops) < len(drops):
        return ""
    return f"a drop of {math.ceil(100 * max(known_drops) - 1e-6)} points would have been"


def _suspected_harm(verdict: Verdict) -> list[str]:
    """Return the ids of undecided harm checks that prevent a promotion although the claim is shown."""
    claim_checks = [check for check in verdict.checks if check.id.startswith("reward")]
    undecided_ids = [check.id for check in _checks_with(verdict, CheckStatus.UNDECIDED)]
    is_claim_shown = bool(claim_checks) and all(check.status is CheckStatus.PASS for check in claim_checks)
    return (
        undecided_ids if is_claim_shown and not any(name in COVERAGE_CHECKS for name in undecided_ids) else []
    )


def has_no_result(check: CheckResult) -> bool:
    """Whether a check of one's own is open because it has no result for too many simulations."""
    return check.status is CheckStatus.UNDECIDED and check.unit is not None and check.p is None


def _deciding_goal(verdicts: Sequence[Verdict]) -> Goal:
    """Return the goal of the deciding splits. Guards always have the goal `hold`."""
    return next((verdict.goal for verdict in verdicts if verdict.goal is not Goal.HOLD), Goal.HOLD)


def reason_and_next_steps(summary: RunSummary) -> tuple[str, str, str]:
    """Return the reason for a run's result, what to do about it, and the next command.

    Each is empty if there is none. The command runs as it stands.
    """
    deciding = deciding_verdicts(summary)
    if summary.trouble:
        return summary.trouble.removeprefix("no verdict: "), "", ""
    if summary.decision is None or not deciding:
        reason = "; ".join(dict.fromkeys(suite.reason for suite in summary.suites if suite.reason))
        cause, _, remedy = reason.rpartition("; ")
        if not cause or len(summary.suites) > 1:
            return reason, "", ""
        options = shlex.split(remedy.partition(": pytest ")[2])
        if not options:
            return cause, remedy, ""
        changes = dict(zip(options[::2], options[1::2], strict=True))
        dropped = {"--t2e-save-baseline", "--t2e-baseline-mode", "--t2e-baseline"} - changes.keys()
        command = _command(summary, {**changes, **dict.fromkeys(dropped)})
        return cause, "", command or shlex.join(["pytest", *options])
    reason, advice, command = _verdict_reason(deciding[0], summary)
    suites = [suite.name for suite in summary.suites if deciding[0] in suite.verdicts]
    split_name = " · ".join(filter(None, (suites[0], deciding[0].split)))
    return f"{split_name}: {reason}" if reason and len(summary.suites) > 1 else reason, advice, command


def without_options(
    arguments: Iterable[str], names: Collection[str], flags: Collection[str] = ()
) -> list[str]:
    """Return the arguments of pytest without some options and their values, and without some flags."""
    kept_arguments: list[str] = []
    is_value_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if is_value_next or argument in flags:
            is_value_next = False
        elif name in names:
            is_value_next = not equals
        else:
            kept_arguments.append(argument)
    return kept_arguments


_NARROWING_OPTIONS, _NARROWING_FLAGS = ("-k", "-m", "--deselect"), ("-x", "--lf", "--last-failed", "--sw")


def _command(summary: RunSummary, changes: Mapping[str, str | None]) -> str:
    """Return the command of a run on all tasks, with options changed; None removes an option.

    Empty if there is no command.
    """
    if not summary.command:
        return ""
    names = [*changes, *(["--t2e-candidate"] if "--candidate" in changes else []), *_NARROWING_OPTIONS]
    words = without_options(summary.command, names, _NARROWING_FLAGS)
    return shlex.join([*words, *(word for name, value in changes.items() if value for word in (name, value))])


def _remeasuring_command(summary: RunSummary, verdict: Verdict, needed: NeededEvidence | None = None) -> str:
    """Return the commands that measure the baseline and the candidate again, and their cost.

    Both sides need the same number of trials. Empty if the baseline cannot be measured again: it is not a
    saved one of its candidate, or only the changed code could be run.
    """
    suite = next(suite for suite in summary.suites if verdict in suite.verdicts)
    if not (summary.command and suite.tasks and suite.baseline) or _changed_code(summary):
        return ""
    changes, cost = {"--t2e-suite": suite.name}, ""
    if needed is not None and needed.trials is not None:
        count = 2 * suite.tasks * needed.trials
        changes["--t2e-trials"] = str(needed.trials)
        limit = "at most " if summary.reuses else ""
        cost = f" # {limit}{format_count(count, 'simulation')}, and reruns of regressions"
        if needed.cost and needed.simulations:
            cost += f", about {format_dollars(needed.cost / needed.simulations * count)}"
    unused = dict.fromkeys(("--t2e-goal", "--t2e-baseline", "--t2e-against"))
    saved = {"--t2e-gate": "off", "--t2e-save-baseline": suite.baseline, "--t2e-baseline-mode": "update"}
    baseline = _command(summary, {**unused, "--candidate": suite.baseline, **saved, **changes})
    return f"{baseline} && {_command(summary, changes)}{cost}"


def show_command(summary: RunSummary) -> str:
    """Return the command that lists the failed tasks of a run, and opens no trace."""
    run = summary.run_id if PurePath(summary.evidence).name == summary.run_id else summary.evidence
    return sanitize_line(shlex.join(["trace2evolve", "show", run]))


def _verdict_reason(verdict: Verdict, summary: RunSummary) -> tuple[str, str, str]:
    """Return the reason of a verdict, what to do about it, and the next command."""
    evidence = shlex.quote(summary.evidence)
    shown = f"trace2evolve show {evidence}" if summary.evidence else ""
    if verdict.decision is Decision.PROMOTE:
        reason = "; ".join(_check_text(check) for check in verdict.checks if check.id.startswith("reward"))
        advice = "check the suspected tasks" if verdict.suspected else ""
        if verdict.goal is Goal.NO_REGRESSION:  # such a run cannot justify a baseline
            return reason, advice, shown if verdict.suspected else ""
        return reason, advice, f"trace2evolve baseline promote {evidence}" if summary.evidence else ""
    if verdict.decision is Decision.DISCARD:
        failed_checks = _checks_with(verdict, CheckStatus.FAIL)
        reason = " · ".join(map(_check_text, failed_checks)) if not is_guard(verdict) else verdict.reason
        verb = "revise" if is_working_tree(summary) else "revise or drop"
        return reason or verdict.reason, f"{verb} {_revision(summary)}", shown
    if verdict.unjudged and not verdict.partial:
        reason, *_ = _open_reason(verdict, summary)
        option = "--t2e-judge" if summary.run_id else "--judge"  # `trace2evolve compare` makes no run
        tasks_text = f"tasks that need a judge of natural-language assertions: {verdict.unjudged}"
        return reason, f"name a judge with {option} ({tasks_text})", ""
    return _open_reason(verdict, summary)


def _open_reason(verdict: Verdict, summary: RunSummary) -> tuple[str, str, str]:
    """Return why a split is undecided, what to do about it, and the next command."""
    split, candidate, again = verdict.split or "the tasks", _revision(summary), _command(summary, {})
    if verdict.partial:
        return verdict.reason, f"run all of {split} on both sides", again
    if is_guard(verdict):
        return verdict.reason, f"run more trials or tasks of {split}, or revise {candidate}", ""
    n_lost = verdict.baseline.missing + verdict.candidate.missing
    # Only a live run uses models.
    live_remedy = "rerun the same command to retry lost simulations"
    loss_remedy, retried = (live_remedy, again) if summary.used else ("record the lost simulations again", "")
    tasks_remedy = "run the same tasks on both sides"
    if any(" content " in line for line in verdict.left_out):
        tasks_remedy = (
            "measure both sides on the same content of the tasks; the report names those that differ"
        )
    if verdict.candidate.reward is None:
        return verdict.reason, *((loss_remedy, retried) if n_lost else (tasks_remedy, ""))
    undecided_checks = _checks_with(verdict, CheckStatus.UNDECIDED)
    coverage = [check for check in undecided_checks if check.id in COVERAGE_CHECKS]
    # With too few results, more trials of an open claim would not help first.
    is_incomplete = any(check.id in ("compared", "measured") for check in coverage)
    if failing := [check for check in undecided_checks if check.id == "all_agent_errors"]:
        return failing[0].detail, "correct the agent, and rerun", ""
    if any(check.id == "baseline_rerun" for check in coverage):
        reason = "reruns of the baseline contradict its recorded trials"
        return reason, "save the baseline again, and rerun", _remeasuring_command(summary, verdict)
    if resultless := [check for check in undecided_checks if has_no_result(check)]:
        return "; ".join(map(_check_text, resultless)), "correct the check, and rerun", ""
    claim = next((check for check in undecided_checks if check.id.startswith("reward")), None)
    if claim is not None and not is_incomplete:
        needed = next((item for item in verdict.settling if item.check == claim.id), None)
        command = ""
        if needed is not None and needed.trials is not None and not verdict.identical:
            command = _remeasuring_command(summary, verdict, needed)
        return _open_claim_reason(claim, needed), _advice(verdict, needed, candidate), command
    if coverage:
        parts = [f"{format_count(n_lost, 'simulation')} lost"] if n_lost else []
        parts += [f"{check.id.replace('_', ' ')} {check.detail}" for check in coverage]
        is_left_out = any(check.id == "compared" for check in coverage)
        if not n_lost and any(" measured only after " in check.detail for check in coverage):
            loss_remedy = "run more trials of each task; a rerun counts the same simulations at their worst"
            retried = ""
        return "; ".join(parts), *((tasks_remedy, "") if is_left_out else (loss_remedy, retried))
    reason = "; ".join(map(_check_text, undecided_checks)) or verdict.reason
    return reason, f"run more trials of each task, or revise {candidate}", ""


def _advice(verdict: Verdict, needed: NeededEvidence | None, candidate: str) -> str:
    if verdict.identical:
        return "measure each side separately; both have the same simulations"
    if needed is None:
        return f"run more trials of each task, or revise {candidate}"
    if needed.trials is not None or needed.tasks is not None:
        return f"needed: {needed_evidence_text(needed)}"
    return f"revise or drop {candidate}; more trials will not help"


def _open_claim_reason(claim: CheckResult, needed: NeededEvidence | None) -> str:
    if claim.estimate is None:
        return claim.detail
    is_stuck = needed is not None and needed.trials is None and needed.tasks is None
    obstacle = _OBSTACLE_SUFFIXES[needed.obstacle] if needed is not None and is_stuck else ""
    if claim.threshold:
        return f"change {interval_text(claim)} points{obstacle}; {_signed_points(claim.threshold)} is allowed"
    if claim.detectable is None:
        return f"change {change_text(claim)} points{obstacle}; p {p_text(claim)}"
    detected = f"this run detects a gain of {detectable_text(claim)} or more"
    return f"change {change_text(claim)} points{obstacle}; {detected}"


def _check_text(check: CheckResult) -> str:
    """Describe a deciding check with its figures."""
    name = CHECK_NAMES.get(check.id, check.id)
    if not name.startswith("reward") or check.estimate is None:
        return f"{name}: {check.detail}" if check.detail else name
    # The p-values of other checks concern harm.
    has_p = check.id == "reward_improved" and check.status is CheckStatus.PASS and check.p is not None
    return f"{name} {interval_text(check)} points" + (f", p {p_text(check)}" if has_p else "")


def _checks_with(verdict: Verdict, status: CheckStatus) -> list[CheckResult]:
    return [check for check in verdict.checks if check.status is status]


def baseline_names(summary: RunSummary) -> str:
    """The names of the baselines that a run is compared with; empty if there are none."""
    return ", ".join(dict.fromkeys(suite.baseline for suite in summary.suites if suite.baseline))


def needed_evidence_text(needed: NeededEvidence) -> str:
    """Describe the trials or tasks that would settle a check, or why none would."""
    options = []
    if needed.trials is not None:
        options.append(f"{needed.trials:,} trials of each task on both sides")
    if needed.tasks is not None:
        options.append(f"{needed.tasks:,} tasks with the current number of trials")
    return " or ".join(options) or OBSTACLE_TEXTS[needed.obstacle]
