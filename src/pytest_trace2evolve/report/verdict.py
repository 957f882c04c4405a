"""The terminal report of a run or a comparison: an overview, the checks, and finally the verdict."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from pytest_trace2evolve.records.verdict import (
    EXIT_STATUS,
    CheckResult,
    CheckStatus,
    Decision,
    GuardAnswer,
    Interval,
    Label,
    RunSummary,
    Settling,
    SuiteSummary,
    Verdict,
)
from pytest_trace2evolve.report.conclusion import (
    CHECK_NAMES,
    COVERAGE,
    detects,
    headline,
    interval,
    is_guard,
    p_value,
    passing_groups,
    reasons,
    settling_ways,
    share_text,
)
from pytest_trace2evolve.report.formatting import (
    COLUMNS,
    NOTHING,
    Page,
    counted,
    in_middle,
    listed,
    number,
    points,
    terminal,
)
from pytest_trace2evolve.scoring.metrics import Metrics
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.session.compare import Comparison

SplitFigures = Sequence[tuple[str, str, Metrics]]
"""The figures of the candidate, each with its suite and split."""

LONGEST_NAME, LONGEST_PLACE, LONGEST_TASK = 24, 32, 80
"""Maximum columns of a name within a line, of a suite with its split, and of a task's id."""

_STYLES: Mapping[object, str] = {
    CheckStatus.PASS: "green",
    CheckStatus.FAIL: "red",
    CheckStatus.UNDECIDED: "yellow",
    CheckStatus.NOT_APPLICABLE: "dim",
    Decision.PROMOTE: "bold green",
    Decision.DISCARD: "bold red",
    Decision.INCONCLUSIVE: "bold yellow",
}
_SIGNS = {
    CheckStatus.PASS: "✓",
    CheckStatus.FAIL: "✗",
    CheckStatus.UNDECIDED: "?",
    CheckStatus.NOT_APPLICABLE: NOTHING,
}
_GUARD_STATUS = {
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


def comparison_text(comparison: "Comparison", *, verbose: bool = False) -> str:
    """The report of `trace2evolve compare`, with the figures of every check if `verbose` is set."""
    verdict, target = comparison.verdict, terminal(stream_width=COLUMNS)
    suite = SuiteSummary(
        name=verdict.suite or "",
        baseline=comparison.baseline_name,
        verdicts=(verdict,),
        compared=comparison.compared if verbose else None,  # the notes name the differences
    )
    summary = RunSummary(
        candidate=comparison.candidate_name,
        decision=verdict.decision,
        suites=(suite,),
        notes=comparison.notes,
    )
    page = Page(width=target.width, colour=target.is_terminal)
    sides = [("baseline", comparison.baseline), ("candidate", comparison.candidate)]
    _print_body(page, summary, (), sides, verbose=verbose)
    _print_conclusion(page, summary, None if verdict.decision is None else EXIT_STATUS[verdict.decision])
    return page.text


def run_report(
    summary: RunSummary,
    figures: SplitFigures,
    *,
    width: int,
    colour: bool,
    verbosity: int = 0,
    exit_status: int | None = None,
) -> str:
    """The report of a whole run as text.

    Args:
        summary: The run.
        figures: The figures of each split that was run.
        width: Columns of the terminal.
        colour: Whether the terminal shows colours.
        verbosity: Below 0, only the verdict is reported; above 0, the figures of every check are added.
        exit_status: The exit status of the process; None if it is not known.
    """
    page = Page(width=width, colour=colour)
    if verbosity >= 0:
        several = len(summary.suites) > 1
        titled = [(_place(suite if several else "", split), found) for suite, split, found in figures]
        _print_body(page, summary, figures, titled, verbose=verbosity > 0)
    _print_conclusion(page, summary, exit_status)
    return page.text


def _print_body(
    page: Page,
    summary: RunSummary,
    figures: SplitFigures,
    titled: Sequence[tuple[str, Metrics]],
    *,
    verbose: bool,
) -> None:
    several = len(summary.suites) > 1
    decisions = sum(verdict.decision is not None for suite in summary.suites for verdict in suite.verdicts)
    why, _ = reasons(summary)
    page.rule(_title(summary))
    _print_overview(page, summary, figures)
    if verbose:
        _print_metrics(page, titled)
    for suite in summary.suites:
        prefix = suite.name if several else ""
        if several and suite.reason and not suite.verdicts:
            page.line(f"no verdict: {suite.reason}", label=f"{_short(suite.name)}: ")
        sides = [] if suite.compared is None or not suite.verdicts else suite.compared.lines
        for line in sides if verbose or len(sides) > 1 else ():
            who, _, made_by = line.partition(": ")
            page.line(made_by, label=f"{who}: ")
        for verdict in suite.verdicts:
            _print_verdict(page, verdict, suite.baseline or "", prefix, decisions > 1, why, verbose=verbose)
        if suite.left_out:
            _print_left_out(page, f"{_short(suite.name)}: left out", suite.left_out)
    for note in summary.notes:
        page.line(note, label="note: ")
    if summary.evidence:
        clean = [
            verdict.split
            for suite in summary.suites
            for verdict in suite.verdicts
            if verdict.label is Label.CLEAN and verdict.split
        ]
        warning = f" (opening a {clean[0]} trace ends clean evidence)" if clean else ""
        page.line(f"trace2evolve show RUN TASK{warning}", "yellow" if clean else "", label="open: ")
        page.line(summary.evidence, label="data: ")
    if summary.used:
        page.line(summary.used, label="used: ")


def _title(summary: RunSummary) -> str:
    baselines = ", ".join(dict.fromkeys(suite.baseline for suite in summary.suites if suite.baseline))
    against = f" vs {baselines}" if baselines else ""
    suites = ", ".join(suite.name for suite in summary.suites if suite.name)
    return f"trace2evolve: {summary.candidate}{against}" + (f" · {suites}" if suites else "")


def _place(suite: str, split: str) -> str:
    return " · ".join(filter(None, (suite, split)))


def _print_overview(page: Page, summary: RunSummary, figures: SplitFigures) -> None:
    """Print one row per split; within a suite, the gated splits come first."""
    several = len(summary.suites) > 1
    rows: list[tuple[list[str], str]] = []
    for suite in summary.suites:
        prefix = suite.name if several else ""
        known = {split: found for name, split, found in figures if name == suite.name}
        for verdict in suite.verdicts:
            found = known.pop(verdict.split or "", None)
            lost = verdict.candidate.missing if found is None else found.simulations - found.measured
            old, new = (share_text(side.reward) for side in (verdict.baseline, verdict.candidate))
            reward = next((check for check in verdict.checks if check.id.startswith("reward")), None)
            cells = [_place(prefix, verdict.split or "all"), str(verdict.tasks), f"{old} → {new}"]
            cells.append(NOTHING if reward is None else interval(reward))
            rows.append(([*cells, f"{len(verdict.broken)}/{len(verdict.fixed)}", str(lost)], ""))
        for split, found in known.items():
            cells = [_place(prefix, split), str(found.tasks), share_text(found.reward), "(not gated)", ""]
            rows.append(([*cells, str(found.simulations - found.measured)], "dim"))
    if not rows:
        return
    columns = ["split", "tasks", "reward", "change, points", "broken/fixed", "lost"]
    kept = range(len(columns) if any(cells[-1] != "0" for cells, _ in rows) else len(columns) - 1)
    page.table([([cells[place] for place in kept], style) for cells, style in [(columns, "bold"), *rows]])


def _print_metrics(page: Page, titled: Sequence[tuple[str, Metrics]]) -> None:
    """Print figures of trials, actions and invariants that are not needed to understand the verdict."""
    if not titled:
        return
    powers = sorted({k for _, found in titled for k in found.pass_hat if k in (1, 2, 4, 8, 16)})
    names = ["", "runs", "lost", *(f"pass^{k}" for k in powers), "actions", "read", "write", "max steps"]
    rows = [(names, "bold")]
    for title, found in titled:
        lost, at_limit = found.simulations - found.measured, found.terminations.get("max_steps", 0)
        shares = [found.pass_hat.get(k) for k in powers]
        shares += [found.action_match, found.read_action_match, found.write_action_match]
        cells = [title, str(found.simulations), str(lost), *map(share_text, shares), str(at_limit)]
        rows.append((cells, ""))
    page.table(rows)
    for title, found in titled:
        if line := invariants_line(found):
            page.line(line, label=f"{sanitize_line(title)}: ")


def _print_verdict(
    page: Page, verdict: Verdict, baseline: str, suite: str, name_decision: bool, why: str, *, verbose: bool
) -> None:
    guards = is_guard(verdict)
    place = in_middle(sanitize_line(_place(suite, verdict.split or "")), LONGEST_PLACE) or "all tasks"
    decision = verdict.decision.value.upper() if verdict.decision and name_decision else ""
    test = f" ({verdict.test}, level {verdict.alpha:.4f})" if verdict.look and verdict.alpha else ""
    verb = "guards against harm" if guards else "decide" if verdict.split is None else "decides"
    evidence = "" if guards else f" on {verdict.label.value} evidence{test}"
    page.line(
        f"{place} {verb}{evidence}:" + (f" {decision}" if decision else ""),
        "bold",
    )
    lines = _guard_lines(verdict) if guards else _check_lines(verdict, baseline, verbose=verbose)
    lines = [(status, in_middle(label, page.width // 2 - 5), text) for status, label, text in lines]
    width = max((cell_len(label) for _, label, _ in lines), default=0)
    for status, label, text in lines:
        gap = "  " if label else ""
        page.line(
            text,
            label=f" {_SIGNS[status]} {label}{' ' * (width - cell_len(label))}{gap}",
            label_style=_STYLES[status],
        )
    if verdict.reason and not guards and verdict.reason != why:
        page.line(verdict.reason, label="   ")
    if verdict.left_out:
        _print_left_out(page, "left out", verdict.left_out)
    if verbose:
        _print_figures(page, verdict)
    else:
        for title, names in (("confirmed", verdict.regressions), ("suspected", verdict.suspected)):
            _print_names(page, title, names)


def _check_lines(verdict: Verdict, baseline: str, *, verbose: bool) -> list[tuple[CheckStatus, str, str]]:
    """Status, name and answer of each check that applies; passed checks for harm share one line."""
    claims, open_, others = [], [], []
    passed = []
    for check in verdict.checks:
        status, name = check.status, CHECK_NAMES.get(check.id, check.id)
        if status is CheckStatus.NOT_APPLICABLE:
            continue
        if name == "reward":
            claims.append((status, _claim(check, baseline), _answer(check, verdict)))
        elif name == "regressions":
            claims.append((status, name, _fallen(verdict)))
        elif check.id in COVERAGE or check.id not in CHECK_NAMES:
            others.append((status, _short(name).replace("_", " "), check.detail or status.value))
        elif status is CheckStatus.PASS:
            passed.append(check)
        else:
            open_.append((status, name, f"{_answer(check, verdict)}: {check.detail}"))
    if passed and verdict.candidate.reward is not None:
        text = "pass" if verdict.alpha is None else _HARM_ANSWERS[CheckStatus.PASS]
        text += "" if verbose else " (-v for figures)"
        others.insert(0, (CheckStatus.PASS, ", ".join(passing_groups(passed)), text))
    return [*claims, *open_, *others]


def _guard_lines(verdict: Verdict) -> list[tuple[CheckStatus, str, str]]:
    status = _GUARD_STATUS[verdict.guard] if verdict.guard else CheckStatus.UNDECIDED
    return [(status, "", verdict.reason)]


def _short(name: str) -> str:
    """An untrusted name, shortened and sanitized for a line."""
    return in_middle(sanitize_line(name), LONGEST_NAME)


def _claim(check: CheckResult, baseline: str) -> str:
    if check.id == "reward_drop":
        return "reward"
    claim = "better" if check.id == "reward_improved" else "not worse"
    return f"{claim} than {_short(baseline)}"


def _answer(check: CheckResult, verdict: Verdict) -> str:
    if verdict.alpha is None:  # the policy compares point estimates
        return "passes" if check.status is CheckStatus.PASS else "fails"
    claims = check.id in ("reward_improved", "reward_not_worse")
    facts = [] if check.p is None or check.threshold else [f"p {p_value(check)}"]
    if check.estimate is None:
        facts = [check.detail]
    elif check.threshold:
        facts.append(f"margin {-100 * check.threshold:g} points")
    text = (_CLAIM_ANSWERS if claims else _HARM_ANSWERS)[check.status]
    hides_p = claims and check.status is CheckStatus.FAIL
    return text if hides_p or not facts else f"{text} ({', '.join(facts)})"


def _fallen(verdict: Verdict) -> str:
    """The number of tasks that fell, and the numbers confirmed, suspected and cleared by reruns."""
    fell, confirmed, suspected = (
        len(names) for names in (verdict.broken, verdict.regressions, verdict.suspected)
    )
    if not fell:
        return "no task fell"
    cleared = 0 if verdict.alpha is None else fell - confirmed - suspected
    if cleared == fell:
        return f"{fell} fell; reruns confirmed none"
    counts = ((confirmed or "none", "confirmed"), (suspected, "suspected"), (cleared, "cleared"))
    facts = [f"{count} {name}" for count, name in counts if count]
    return f"{fell} fell" + (f"; {', '.join(facts)}" if facts else "")


def _print_names(page: Page, title: str, names: Sequence[str]) -> None:
    """Names of tasks, each short enough for a line."""
    if names:
        label = f"   {title} ({len(names)}): "
        longest = min(LONGEST_TASK, page.width - len(label) - 1)
        page.line(listed([in_middle(sanitize_line(name), longest) for name in names]), label=label)


def _print_left_out(page: Page, title: str, tasks: Sequence[str]) -> None:
    """Names of tasks with reasons, which are wrapped if they are long."""
    if tasks:
        shown = [in_middle(sanitize_line(task), LONGEST_TASK) for task in tasks]
        page.line(listed(shown, "; "), label=f"   {title} ({len(tasks)}): ")


def _print_figures(page: Page, verdict: Verdict) -> None:
    """Print the figures of every check and the names of all tasks that changed."""
    facts = [f"policy {verdict.policy}", f"goal {verdict.goal.value}", f"{verdict.label.value} evidence"]
    page.line(", ".join([*facts, f"{counted(verdict.tasks, 'task')} compared"]), label="   ")
    rows, notes = [(["   check", "change, points", "p", "detects"], "bold")], [""]
    for check in verdict.checks:
        in_points = check.id in CHECK_NAMES and not check.id.startswith("no_")
        figure = interval(check) if in_points else number(check.estimate)
        cells = [f" {_SIGNS[check.status]} {check.id}", figure, p_value(check), detects(check)]
        rows.append((cells, "" if check.status is CheckStatus.PASS else _STYLES[check.status]))
        margin = ""
        if check.threshold:
            needed = f"margin {points(check.threshold, 'g')} points" if in_points else ""
            margin = f"; {needed or f'{check.threshold:g} needed'}"
        notes.append(check.detail + margin)
    page.table(rows, notes)
    if verdict.alpha is not None:
        page.line(
            "detects: the smallest change that four of five such runs would show; interval: each bound is "
            f"one-sided at level {verdict.alpha:.4f}",
            label="   ",
        )
    old, new = verdict.baseline.pass_hat, verdict.candidate.pass_hat
    for k in sorted(old.keys() & new.keys()):
        page.line(f"pass^{k}: {_estimate(old[k])} → {_estimate(new[k])}", label="   ")
    for title, names in (
        ("fixed", verdict.fixed),
        ("broken", verdict.broken),
        ("regressions", verdict.regressions),
        ("suspected", verdict.suspected),
    ):
        _print_names(page, title, names)
    for settling in verdict.settling:
        page.line(f"{settling.check}: {settling_text(settling)}", label="   ")
    if verdict.look is not None and verdict.split:
        page.line(
            f"the next candidate is test {verdict.look + 1} of {verdict.split}, at a stricter level",
            label="   ",
        )


def settling_text(settling: Settling) -> str:
    """The ways to settle an open check, or the reason why nothing would settle it."""
    ways = settling_ways(settling)
    is_open = settling.trials is None and settling.tasks is None
    return ways if is_open else f"an effect like this one would be settled by {ways}"


def _estimate(interval: Interval) -> str:
    return f"{share_text(interval.estimate)} ({share_text(interval.low)} … {share_text(interval.high)})"


def _print_conclusion(page: Page, summary: RunSummary, exit_status: int | None) -> None:
    """Print the verdict, its reason and the next step."""
    decision = None if summary.trouble else summary.decision
    baselines = ", ".join(dict.fromkeys(suite.baseline for suite in summary.suites if suite.baseline))
    if decision is None:
        text = f"NO VERDICT on {summary.candidate}"
    else:
        said = headline(summary, _short, _short(baselines) or "its baseline", CHECK_NAMES)
        text = f"{decision.value.upper()}: {said}"
    style = _STYLES.get(decision, "bold red" if summary.trouble else "bold")
    page.line(text, style, end="" if exit_status is None else f"(exit {exit_status})")
    why, then = reasons(summary)
    for label, text in ((" why:  ", why), (" next: ", then)):
        if text:
            page.line(text, label=label)


def invariants_line(figures: Metrics) -> str:
    """The number of simulations that broke each invariant; empty if none broke one or none was checked."""
    found = figures.invariants
    if found is None or not found.broke:
        return ""
    by_name = ", ".join(f"{name.value} {count}" for name, count in found.by_invariant.items())
    return f"invariants: {found.broke} of {found.simulations} simulations broke at least one: {by_name}"


def pass_hat(figures: Metrics) -> str:
    """The values of pass^k for k = 1, 2, 4, 8 and 16, as far as there are enough trials."""
    return " ".join(number(figures.pass_hat[k]) for k in (1, 2, 4, 8, 16) if k in figures.pass_hat) or NOTHING
