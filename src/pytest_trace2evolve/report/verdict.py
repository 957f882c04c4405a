"""Render the terminal report of a run or a comparison: an overview, the checks and the verdict."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from pytest_trace2evolve.records.verdict import (
    COVERAGE_CHECKS,
    EXIT_STATUS,
    RATIO_UNIT,
    CheckResult,
    CheckStatus,
    Decision,
    Estimand,
    Goal,
    GuardAnswer,
    Label,
    RunSummary,
    SideFigures,
    SuiteSummary,
    Verdict,
)
from pytest_trace2evolve.report.conclusion import (
    FIXED_TASKS_TEXT,
    baseline_names,
    has_no_result,
    headline,
    is_guard,
    is_working_tree,
    needed_evidence_text,
    reason_and_next_steps,
    show_command,
    subject,
)
from pytest_trace2evolve.report.figures import (
    CHECK_NAMES,
    CHECK_SIGNS,
    check_figure,
    check_group_names,
    checks_line,
    detectable_text,
    interval_text,
    invariants_line,
    is_in_points,
    p_text,
    pass_hat_rows,
    ratio_text,
    share_text,
    usage_rows,
)
from pytest_trace2evolve.report.formatting import (
    NOT_MEASURED,
    REPORT_COLUMNS,
    Page,
    format_count,
    format_list,
    format_points,
    make_terminal_console,
    shorten_middle,
)
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.scoring.metrics import Metrics
    from pytest_trace2evolve.session.compare import Comparison

SplitFigures = Sequence[tuple[str, str, "Metrics"]]
"""Suite, split and metrics of each split that the candidate ran."""

MAX_NAME_COLUMNS, MAX_SPLIT_COLUMNS, MAX_TASK_COLUMNS = 24, 32, 80
"""Maximum widths of a name, of a suite with its split, and of a task id."""

_STYLES: Mapping[object, str] = {
    CheckStatus.PASS: "green",
    CheckStatus.FAIL: "red",
    CheckStatus.UNDECIDED: "yellow",
    CheckStatus.NOT_APPLICABLE: "dim",
    Decision.PROMOTE: "bold green",
    Decision.DISCARD: "bold red",
    Decision.INCONCLUSIVE: "bold yellow",
}
_GUARD_STATUSES = {
    GuardAnswer.NO_HARM_DETECTED: CheckStatus.PASS,
    GuardAnswer.HARM_SUSPECTED: CheckStatus.UNDECIDED,
    GuardAnswer.HARM_SHOWN: CheckStatus.FAIL,
}
_CLAIM_ANSWERS = {
    CheckStatus.PASS: "shown",
    CheckStatus.FAIL: "no: shown to be worse",
    CheckStatus.UNDECIDED: "not shown",
}
_HARM_ANSWERS = {
    CheckStatus.PASS: "no harm detected",
    CheckStatus.FAIL: "harm shown",
    CheckStatus.UNDECIDED: "harm suspected",
}


def comparison_summary(comparison: "Comparison", *, is_verbose: bool = True) -> RunSummary:
    """Return the summary of a comparison; without `is_verbose`, it does not describe the sides."""
    verdict = comparison.verdict
    suite = SuiteSummary(
        name=verdict.suite or "",
        baseline=comparison.baseline_name,
        verdicts=(verdict,),
        compared=comparison.compared if is_verbose else None,  # the notes name the differences
    )
    return RunSummary(
        candidate=comparison.candidate_name,
        decision=verdict.decision,
        suites=(suite,),
        notes=comparison.notes,
    )


def comparison_text(comparison: "Comparison", *, is_verbose: bool = False) -> str:
    """Render the report of `trace2evolve compare`, with the figures of every check if `is_verbose` is set."""
    verdict, console = comparison.verdict, make_terminal_console(stream_width=REPORT_COLUMNS)
    return run_report(
        comparison_summary(comparison, is_verbose=is_verbose),
        (),
        width=console.width,
        has_colour=console.is_terminal,
        verbosity=int(is_verbose),
        exit_status=None if verdict.decision is None else EXIT_STATUS[verdict.decision],
        sides=[("baseline", verdict.baseline), ("candidate", verdict.candidate)],
    )


def run_report(
    summary: RunSummary,
    figures: SplitFigures,
    *,
    width: int,
    has_colour: bool,
    verbosity: int = 0,
    exit_status: int | None = None,
    sides: Sequence[tuple[str, SideFigures]] = (),
) -> str:
    """Render the report of a run.

    Args:
        summary: The run to report.
        figures: The metrics of each split that was run.
        width: Columns of the terminal.
        has_colour: Whether the terminal shows colours.
        verbosity: Below 0, the report contains only the verdict; above 0, also the figures of every check.
        exit_status: The exit status of the process; None if it is not known.
        sides: The figures of both sides, with their titles.
    """
    page = Page(width=width, has_colour=has_colour)
    if verbosity >= 0:
        has_several_suites = len(summary.suites) > 1
        titled_metrics: list[tuple[str, Metrics | SideFigures]] = [*sides]
        for suite, split, metrics in figures:
            titled_metrics.append((_split_name(suite if has_several_suites else "", split), metrics))
        _print_body(page, summary, figures, titled_metrics, is_verbose=verbosity > 0)
    _print_conclusion(page, summary, exit_status)
    if summary.page:
        page.print_line(summary.page, label=" page: ")
    return page.text


def _print_body(
    page: Page,
    summary: RunSummary,
    figures: SplitFigures,
    titled_metrics: "Sequence[tuple[str, Metrics | SideFigures]]",
    *,
    is_verbose: bool,
) -> None:
    has_several_suites = len(summary.suites) > 1
    n_decisions = sum(verdict.decision is not None for suite in summary.suites for verdict in suite.verdicts)
    reason, *_ = reason_and_next_steps(summary)
    page.print_heading(_report_title(summary))
    for change in summary.changes:
        page.print_line(change, "bold yellow", label="changed: ")
    _print_overview(page, summary, figures)
    if is_verbose:
        _print_metrics(page, titled_metrics)
    for suite in summary.suites:
        prefix = suite.name if has_several_suites else ""
        if has_several_suites and suite.reason and not suite.verdicts:
            page.print_line(f"no verdict: {suite.reason}", label=f"{_short_name(suite.name)}: ")
        side_lines = [] if suite.compared is None or not suite.verdicts else suite.compared.lines
        for line in side_lines if is_verbose or len(side_lines) > 1 else ():
            side, _, agent = line.partition(": ")
            page.print_line(agent, label=f"{side}: ")
        for verdict in suite.verdicts:
            _print_verdict(
                page, verdict, suite.baseline or "", prefix, n_decisions > 1, reason, is_verbose=is_verbose
            )
        if suite.left_out:
            _print_left_out(page, f"{_short_name(suite.name)}: left out", suite.left_out)
    for note in summary.notes:
        page.print_line(note, label="note: ")
    if summary.evidence:
        page.print_line(show_command(summary), label="open: ")
        page.print_line(summary.evidence, label="data: ")
    if summary.used:
        page.print_line(summary.used, label="used: ")


def _report_title(summary: RunSummary) -> str:
    baselines = baseline_names(summary)
    is_edit = is_working_tree(summary)
    candidate = "the working tree" if is_edit else subject(summary, sanitize_line)
    baseline_text = f" vs {'baseline ' if is_edit else ''}{baselines}" if baselines else ""
    suites = ", ".join(suite.name for suite in summary.suites if suite.name)
    return f"trace2evolve: {candidate}{baseline_text}" + (f" · {suites}" if suites else "")


def _split_name(suite: str, split: str) -> str:
    return " · ".join(filter(None, (suite, split)))


def _print_overview(page: Page, summary: RunSummary, figures: SplitFigures) -> None:
    """Print one row per split, with the gated splits of a suite first."""
    has_several_suites = len(summary.suites) > 1
    rows: list[tuple[list[str], str]] = []
    for suite in summary.suites:
        prefix = suite.name if has_several_suites else ""
        metrics_by_split = {split: metrics for name, split, metrics in figures if name == suite.name}
        for verdict in suite.verdicts:
            metrics = metrics_by_split.pop(verdict.split or "", None)
            n_lost = verdict.candidate.missing if metrics is None else metrics.simulations - metrics.measured
            old, new = (share_text(side.reward) for side in (verdict.baseline, verdict.candidate))
            reward_check = next((check for check in verdict.checks if check.id.startswith("reward")), None)
            cells = [_split_name(prefix, verdict.split or "all"), str(verdict.tasks), f"{old} → {new}"]
            cells.append(NOT_MEASURED if reward_check is None else interval_text(reward_check))
            rows.append(([*cells, f"{len(verdict.broken)}/{len(verdict.fixed)}", str(n_lost)], ""))
        for split, metrics in metrics_by_split.items():
            cells = [_split_name(prefix, split), str(metrics.tasks), share_text(metrics.reward)]
            cells += ["(not gated)", ""]
            rows.append(([*cells, str(metrics.simulations - metrics.measured)], "dim"))
    if not rows:
        return
    columns = ["split", "tasks", "reward", "change, points", "broken/fixed", "lost"]
    shown_columns = range(len(columns) if any(cells[-1] != "0" for cells, _ in rows) else len(columns) - 1)
    page.print_table(
        [([cells[index] for index in shown_columns], style) for cells, style in [(columns, "bold"), *rows]]
    )


def _print_metrics(page: Page, titled_metrics: "Sequence[tuple[str, Metrics | SideFigures]]") -> None:
    """Print additional figures: trials, actions, invariants and the project's own checks."""
    if not titled_metrics:
        return
    ks = sorted({k for _, metrics in titled_metrics for k in metrics.pass_hat if k in (1, 2, 4, 8, 16)})
    headings = ["", "runs", "lost", *(f"pass^{k}" for k in ks), "actions", "read", "write", "max steps"]
    rows = [(headings, "bold")]
    for title, metrics in titled_metrics:
        if isinstance(metrics, SideFigures):  # of a comparison, over the tasks of both sides
            n_lost, n_at_max_steps = metrics.missing, metrics.max_steps
            chances = map(metrics.pass_hat.get, ks)
            shares = [None if chance is None else chance.estimate for chance in chances]
        else:
            n_lost = metrics.simulations - metrics.measured
            n_at_max_steps = metrics.terminations.get("max_steps", 0)
            shares = [metrics.pass_hat.get(k) for k in ks]
        shares += [metrics.action_match, metrics.read_action_match, metrics.write_action_match]
        runs = metrics.measured + n_lost
        rows.append(([title, str(runs), str(n_lost), *map(share_text, shares), str(n_at_max_steps)], ""))
    page.print_table(rows)
    for title, metrics in titled_metrics:
        lines = () if isinstance(metrics, SideFigures) else (invariants_line(metrics), checks_line(metrics))
        for line in filter(None, lines):
            page.print_line(line, label=f"{sanitize_line(title)}: ")


def _print_verdict(
    page: Page,
    verdict: Verdict,
    baseline: str,
    suite: str,
    names_decision: bool,
    run_reason: str,
    *,
    is_verbose: bool,
) -> None:
    is_of_guard = is_guard(verdict)
    split_name = (
        shorten_middle(sanitize_line(_split_name(suite, verdict.split or "")), MAX_SPLIT_COLUMNS)
        or "all tasks"
    )
    decision_text = verdict.decision.value.upper() if verdict.decision and names_decision else ""
    facts = []
    if is_of_guard:
        verb = "guards against harm"
    else:
        verb = "decide" if verdict.split is None else "decides"
        if verdict.label is Label.CLEAN:
            verb += " on clean evidence"
        elif verdict.goal is not Goal.NO_REGRESSION:  # which claims nothing
            remedy = "; clean evidence needs tasks whose traces were never read" if verdict.unclean else ""
            facts.append(": ".join(filter(None, ("not clean evidence", f"{verdict.unclean}{remedy}"))))
        if verdict.look and verdict.alpha:
            facts.append(f"{verdict.test_text}, level {verdict.alpha:.4f}")
    if verdict.estimand is Estimand.SUITE:
        facts.append(FIXED_TASKS_TEXT)
    facts_text = f" ({'; '.join(facts)})" if facts else ""
    page.print_line(f"{split_name} {verb}{facts_text}: {decision_text}".rstrip(), "bold")
    lines = _guard_lines(verdict) if is_of_guard else _check_lines(verdict, baseline, is_verbose=is_verbose)
    # A name that leaves too few columns for the text is shortened; a list of names is wrapped with the text.
    max_width = page.width // 2 - 5
    lines = [
        (status, label if ", " in label else shorten_middle(label, max_width), text)
        for status, label, text in lines
    ]
    widths = [cell_len(label) for _, label, _ in lines if cell_len(label) <= max_width]
    width = max(widths, default=0)
    for status, label, text in lines:
        sign = f" {CHECK_SIGNS[status]} "
        if cell_len(label) > max_width:
            page.print_line(f"{label}: {text}", label=sign, label_style=_STYLES[status])
        else:
            sign += f"{label}{' ' * (width - cell_len(label))}{'  ' if width else ''}"
            page.print_line(text, label=sign, label_style=_STYLES[status])
    if verdict.reason and not is_of_guard and verdict.reason != run_reason:
        page.print_line(verdict.reason, label="   ")
    if verdict.left_out:
        _print_left_out(page, "left out", verdict.left_out)
    _print_usage(page, verdict, is_verbose=is_verbose)
    if is_verbose:
        _print_figures(page, verdict)
    else:
        for title, names in (("confirmed", verdict.regressions), ("suspected", verdict.suspected)):
            _print_names(page, title, names)


def _check_lines(verdict: Verdict, baseline: str, *, is_verbose: bool) -> list[tuple[CheckStatus, str, str]]:
    """Return status, name and answer of each applicable check. Harm checks that passed share one line.

    The project's own checks that do not apply or decide nothing are reported too.
    """
    claim_lines: list[tuple[CheckStatus, str, str]] = []
    open_lines: list[tuple[CheckStatus, str, str]] = []
    other_lines: list[tuple[CheckStatus, str, str]] = []
    passed_checks = []
    for check in verdict.checks:
        status, name = check.status, CHECK_NAMES.get(check.id, check.id)
        if status is CheckStatus.NOT_APPLICABLE:
            if check.unit is not None:
                other_lines.append((status, _short_name(name), check.detail))
            continue
        if name == "reward":
            claim_lines.append((status, _claim_text(check, baseline), _answer_text(check, verdict)))
        elif name == "regressions":
            claim_lines.append((status, name, _dropped_tasks_text(verdict)))
        elif check.unit is None and (check.id in COVERAGE_CHECKS or check.id not in CHECK_NAMES):
            other_lines.append((status, _short_name(name).replace("_", " "), check.detail or status.value))
        elif has_no_result(check):
            open_lines.append((status, _short_name(name), check.detail))
        elif status is CheckStatus.PASS and name == "agent errors" and (check.estimate or 0) > 0:
            other_lines.append((status, name, f"{_answer_text(check, verdict)}: {check.detail}"))
        elif status is CheckStatus.PASS:
            passed_checks.append(check)
        else:
            open_lines.append((status, _short_name(name), f"{_answer_text(check, verdict)}: {check.detail}"))
    if passed_checks and verdict.candidate.reward is not None:
        text = "pass" if verdict.alpha is None else _HARM_ANSWERS[CheckStatus.PASS]
        text += "" if is_verbose else " (-v for figures)"
        other_lines.insert(0, (CheckStatus.PASS, ", ".join(check_group_names(passed_checks)), text))
    return [*claim_lines, *open_lines, *other_lines]


def _guard_lines(verdict: Verdict) -> list[tuple[CheckStatus, str, str]]:
    status = _GUARD_STATUSES[verdict.guard] if verdict.guard else CheckStatus.UNDECIDED
    return [(status, "", verdict.reason)]


def _short_name(name: str) -> str:
    """Sanitize an untrusted name, and shorten it for a line."""
    return shorten_middle(sanitize_line(name), MAX_NAME_COLUMNS)


def _claim_text(check: CheckResult, baseline: str) -> str:
    if check.id == "reward_drop":
        return "reward"
    claim = "better" if check.id == "reward_improved" else "not worse"
    return f"{claim} than {_short_name(baseline)}"


def _answer_text(check: CheckResult, verdict: Verdict) -> str:
    if verdict.alpha is None:  # the policy compares point estimates
        return "passes" if check.status is CheckStatus.PASS else "fails"
    is_claim = check.id in ("reward_improved", "reward_not_worse")
    facts = [] if check.p is None or check.threshold else [f"p {p_text(check)}"]
    if check.estimate is None:
        facts = [check.detail]
    elif check.unit == RATIO_UNIT:
        facts.append(f"{ratio_text(check)}, at most ×{check.threshold:g}")
    elif check.threshold:
        facts.append(f"margin {-100 * check.threshold:g} points")
    text = (_CLAIM_ANSWERS if is_claim else _HARM_ANSWERS)[check.status]
    hides_p = is_claim and check.status is CheckStatus.FAIL
    return text if hides_p or not facts else f"{text} ({', '.join(facts)})"


def _dropped_tasks_text(verdict: Verdict) -> str:
    """Count the tasks that regressed, and those that reruns confirmed, left suspected or cleared."""
    n_regressed, n_confirmed, n_suspected = (
        len(names) for names in (verdict.broken, verdict.regressions, verdict.suspected)
    )
    if not n_regressed:
        return "no task regressed"
    n_cleared = 0 if verdict.alpha is None else n_regressed - n_confirmed - n_suspected
    if n_cleared == n_regressed:
        return f"{n_regressed} regressed; reruns confirmed none"
    counts = ((n_confirmed or "none", "confirmed"), (n_suspected, "suspected"), (n_cleared, "cleared"))
    facts = [f"{count} {name}" for count, name in counts if count]
    return f"{n_regressed} regressed" + (f"; {', '.join(facts)}" if facts else "")


def _print_names(page: Page, title: str, names: Sequence[str]) -> None:
    """Print names of tasks, each short enough for a line."""
    if names:
        label = f"   {title} ({len(names)}): "
        max_columns = min(MAX_TASK_COLUMNS, page.width - len(label) - 1)
        page.print_line(
            format_list([shorten_middle(sanitize_line(name), max_columns) for name in names]), label=label
        )


def _print_left_out(page: Page, title: str, tasks: Sequence[str]) -> None:
    """Print names of tasks with reasons, wrapped if they are long."""
    if tasks:
        shown_tasks = [shorten_middle(sanitize_line(task), MAX_TASK_COLUMNS) for task in tasks]
        page.print_line(format_list(shown_tasks, "; "), label=f"   {title} ({len(tasks)}): ")


def _print_usage(page: Page, verdict: Verdict, *, is_verbose: bool) -> None:
    """Print the ratios of what the agents used, in one line, or in a table with notes if `is_verbose`."""
    if is_verbose and verdict.usage:
        rows = [(["   per simulation", "baseline", "candidate", "ratio"], "bold")]
        rows += [([f"   {metric}", *figures], "") for metric, *figures in usage_rows(verdict)]
        page.print_table(rows, ["", *(found.note for found in verdict.usage)])
        return
    compared = [f"{found.metric} {ratio_text(found)}" for found in verdict.usage if found.ratio is not None]
    missing = [found.metric for found in verdict.usage if found.ratio is None]
    missing_text = f"not compared (-v): {', '.join(missing)}" if missing else ""
    if verdict.usage:
        page.print_line("; ".join(filter(None, [", ".join(compared), missing_text])), label="   usage: ")


def _print_figures(page: Page, verdict: Verdict) -> None:
    """Print the figures of every check and the names of all tasks that changed."""
    facts = [f"policy {verdict.policy}", f"goal {verdict.goal.value}", f"{verdict.label.value} evidence"]
    page.print_line(", ".join([*facts, f"{format_count(verdict.tasks, 'task')} compared"]), label="   ")
    rows, notes = [(["   check", "change, points", "p", "detects"], "bold")], [""]
    for check in verdict.checks:
        name = f" {CHECK_SIGNS[check.status]} {check.id}"
        cells = [name, check_figure(check), p_text(check), detectable_text(check)]
        rows.append((cells, "" if check.status is CheckStatus.PASS else _STYLES[check.status]))
        margin = f"; {_margin_text(check)}" if check.threshold else ""
        notes.append(check.detail + margin)
    page.print_table(rows, notes)
    if verdict.alpha is not None:
        text = "detects: the smallest change that four of five such runs would show; interval: each bound is"
        page.print_line(f"{text} one-sided at level {verdict.alpha:.4f}", label="   ")
    for k, old, new in pass_hat_rows(verdict):
        page.print_line(f"pass^{k}: {old} → {new}", label="   ")
    for title in ("fixed", "broken", "regressions", "suspected"):
        _print_names(page, title, getattr(verdict, title))
    for needed in verdict.settling:
        is_possible = needed.trials is not None or needed.tasks is not None
        prefix = "an effect like this one would be settled by " if is_possible else ""
        page.print_line(f"{needed.check}: {prefix}{needed_evidence_text(needed)}", label="   ")
    if verdict.look is not None and verdict.split:
        text = f"the next candidate is test {verdict.look + 1} of {verdict.split}, at a stricter level"
        page.print_line(text, label="   ")


def _margin_text(check: CheckResult) -> str:
    if check.unit == RATIO_UNIT:
        return f"at most ×{check.threshold:g}"
    if not is_in_points(check):
        return f"{check.threshold:g} needed"
    return f"margin {format_points(check.threshold or 0.0, 'g')} points"


def _print_conclusion(page: Page, summary: RunSummary, exit_status: int | None) -> None:
    """Print the verdict, its reason and the next step."""
    decision = None if summary.trouble else summary.decision
    baselines = baseline_names(summary)
    if decision is None:
        text = f"NO VERDICT on {summary.candidate}"
    else:
        claim = headline(summary, _short_name, _short_name(baselines) or "its baseline", CHECK_NAMES)
        text = f"{decision.value.upper()}: {claim}"
    style = _STYLES.get(decision, "bold red" if summary.trouble else "bold")
    page.print_line(text, style, end="" if exit_status is None else f"(exit {exit_status})")
    reason, advice, command = reason_and_next_steps(summary)
    for label, text in ((" why:  ", reason), (" todo: ", advice)):
        if text:
            page.print_line(text, label=label)
    if command:
        page.print_command(command, label=" next: ")
