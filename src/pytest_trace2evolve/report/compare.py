"""What `trace2evolve compare` prints."""

from pytest_trace2evolve.report.markup import escape
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import (
    checks_table,
    decision_line,
    figures_table,
    rendered,
    verdict_lines,
)
from pytest_trace2evolve.workflow.recorded.compare import Comparison


def comparison_text(comparison: Comparison) -> str:
    """Figures of both sides, the gate's table and the verdict."""
    target = terminal()
    target.print(
        figures_table(
            [
                (f"baseline {comparison.baseline_name}", comparison.baseline),
                (f"candidate {comparison.candidate_name}", comparison.candidate),
            ]
        )
    )
    for line in comparison.compared.lines:
        target.print(escape(line), soft_wrap=True)
    target.print()
    target.print(checks_table(comparison.verdict.checks))
    for line in verdict_lines(comparison.verdict):
        target.print(line, soft_wrap=True)
    for note in comparison.notes:
        target.print(f"note: {escape(note)}", soft_wrap=True)
    target.print(decision_line(comparison.verdict), soft_wrap=True)
    return rendered(target)
