"""What `trace2evolve ledger` prints."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from pytest_trace2evolve.gate.alpha_spending import share
from pytest_trace2evolve.records.ledger import Draw, Evaluation, Origin, Seen
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import rendered
from pytest_trace2evolve.session.access_log import Looks
from pytest_trace2evolve.session.history import Story
from pytest_trace2evolve.utils.sanitize import sanitize_line

SHOWN_ALPHA = 0.05
"""The alpha at which the levels of the next test are shown; the policy's own may differ."""


_MADE = {
    Origin.KEPT: "kept for later runs",
    Origin.FRESH: "by --t2e-fresh",
    Origin.PLAYED: "by a cassette",
    Origin.UNSTORED: "by an agent without a store",
}


def ledger_json(looks: Looks, stories: Sequence[Story]) -> dict[str, Any]:
    """The documented JSON form."""
    return {
        "entries": len(looks.entries),
        "problems": list(looks.problems),
        "splits": [
            {
                "suite": one.suite,
                "split": one.split,
                "lock": one.lock,
                "informed": list(one.informed),
                "entries": [{"name": entry.name, **entry.to_json()} for entry in one.entries],
                "next": None
                if one.next_look is None or looks.problems
                else {"look": one.next_look, "share": share(one.next_look, 1)},
            }
            for one in stories
        ],
    }


def ledger_text(looks: Looks, stories: Sequence[Story]) -> str:
    """The stories, split by split, in order of time."""
    target = terminal()
    for number, one in enumerate(stories):
        if number:
            target.print()
        lines = [(f"{one.suite} · {one.split}", "bold")]
        for name in one.informed:
            lines.append((f"  candidate {name} was informed by it, as its front matter says", ""))
        lines += [(f"  {entry.at:%Y-%m-%d %H:%M} UTC  {_told(entry, one)}", "") for entry in one.entries]
        if not one.informed and not one.entries:
            lines.append(("  no command of ours opened a trace of it, and nothing was judged on it", ""))
        lines += [(f"  {text}", "") for text in _next(one, damaged=bool(looks.problems))]
        for text, style in lines:
            indent = text[: len(text) - len(text.lstrip())]
            target.print(Text(indent + sanitize_line(text), style=style), soft_wrap=True)
    if not stories:
        target.print("no suite is locked, and nothing is written in the ledger")
    return rendered(target)


def _told(entry: Seen | Draw | Evaluation, story: Story) -> str:
    """An entry in a line."""
    if isinstance(entry, Seen):
        trials = ", ".join(map(str, entry.trials))
        return f"{entry.who} looked at task {entry.task}, trial {trials}, of {entry.run}"
    if isinstance(entry, Draw):
        facts = [
            _MADE[entry.made],
            "whole" if entry.whole else "in part",
            "gated" if entry.gated else "not gated",
        ]
        if entry.lock != story.lock:
            facts.append("under another lock")
        return f"{entry.candidate.id} was drawn · {', '.join(facts)} · run {entry.run}"
    facts = [f"{entry.label.value} evidence"]
    trials = f"{entry.trials} trial{'' if entry.trials == 1 else 's'}"
    if entry.look is None:
        facts.append(trials)
    elif entry.analysis is None:
        facts.append(f"test {entry.look} ({trials})")
    else:
        facts.append(f"test {entry.look}, analysis {entry.analysis} ({trials})")
    if entry.alpha is not None:
        facts.append(f"level {entry.alpha:.4f}")
    facts += [f"policy {entry.policy}", f"goal {entry.goal.value}"]
    if entry.repeats is not None:
        facts.append("repeats a recorded verdict")
    if entry.lock != story.lock:
        facts.append("under another lock")
    judged = f"{entry.candidate.id} against {entry.baseline.id}: {entry.decision.value.upper()}"
    return f"{judged} · {', '.join(facts)} · run {entry.run}"


def _next(story: Story, *, damaged: bool) -> list[str]:
    if story.next_look is None:
        return []
    if damaged:
        return ["the ledger is damaged: no candidate is promoted until it is restored or repaired"]
    whole, first = share(story.next_look), share(story.next_look, 1)
    level = f"level {SHOWN_ALPHA * first:.4f} at alpha {SHOWN_ALPHA:g}"
    everything = f"{SHOWN_ALPHA * whole:.4f} with all its analyses"
    return [f"the next new candidate is test {story.next_look}: {level}, {everything}"]
