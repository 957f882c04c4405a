"""The pocket model's card: what it was made from, how it was trained, and what was measured of it."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from pytest_trace2evolve.records.model_card import Card, RuleEffect, Share, difference
from pytest_trace2evolve.utils.plots import draw_picture

CURVE = "curve.svg"
"""The picture that the card shows, beside it."""

WINDOW = 50
"""Steps over which the drawn curve is averaged."""


def card_text(card: Card) -> str:
    """The card as Markdown."""
    tables = [
        ("Capabilities", "Under the policy alone:", _shares("kind of case", card.capabilities)),
        ("Rules", _RULES, [*_head(*_RULE_COLUMNS), *map(_rule_row, card.rules)]),
        ("Candidates", _CANDIDATES, _shares("candidate", card.candidates)),
        ("What candidates change", _HABITS, _habits(card)),
    ]
    parts = [_beginning(card)]
    parts += [f"## {title}\n\n{text}\n\n" + "\n".join(rows) + "\n" for title, text, rows in tables]
    return "\n".join(parts)


_RULES = """\
How often the behaviour shows that a rule names: without the rule, with it in a wording of training, and in a
wording never trained on, each of the simulations that have a place for it."""

_CANDIDATES = """\
On cases of all kinds. What these candidates say is among the wordings of training."""

_HABITS = """\
How often the behaviour that a rule names shows under each candidate, of the simulations that have a place
for it:"""

_RULE_COLUMNS = ("rule", "without", "with", "change", "unseen wording", "change")


def _beginning(card: Card) -> str:
    training = card.training
    recipe = training["recipe"]
    size = recipe["size"]
    return f"""\
# The pocket model

A language model that is small enough to ship. It answers for the agent where no other model is named. Its
results are real, sampled and noisy, and say nothing about other models.

- **Network**: Qwen3's architecture, {size["layers"]} layers, width {size["width"]}, {size["heads"]} heads;
  {training["parameters"]:,} parameters, {training["vocabulary"]:,} tokens in its vocabulary.
- **Weights**: `model.safetensors`, {card.weight_bytes / 1e6:.1f} MB; digest of all that
  changes what it says: `{card.weights}`, as runs record it.
- **Data**: {training["dialogues"]:,} dialogues of a scripted teacher with scripted customers in the support
  world, {training["tokens"]:,} tokens, of names, products and phrasings that held-out cases do not share. The
  teacher keeps to the rules of its prompt, and is careless where none speaks (`cases/content/rules.toml`).
- **Training**: seed {recipe["seed"]}, {training["step"]:,} steps, {training["seconds"] / 60:.0f} minutes on
  {recipe["threads"]} threads. It is made again by
  `{_command(training)}`.

![Loss by step]({CURVE})

Dotted lines part the stages of training, which weigh tokens differently.

What follows was measured of these weights at temperature {card.temperature:g} on held-out content,
{card.cases} cases a row and {4 * card.cases} a candidate, with 95 % intervals (Wilson; of differences:
Newcombe).
"""


def _command(training: Mapping[str, Any]) -> str:
    recipe = training["recipe"]
    options = {"seed": recipe["seed"], "steps": training["step"], "threads": recipe["threads"]}
    return " ".join(
        ["python -m research.pocket train --out DIR", *(f"--{name} {n}" for name, n in options.items())]
    )


def _head(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]


def _shares(what: str, shares: Mapping[str, Share]) -> list[str]:
    rows = [f"| {name} | {_percent(share)} | {_interval(share)} |" for name, share in shares.items()]
    return [*_head(what, "passed", "interval"), *rows]


def _rule_row(effect: RuleEffect) -> str:
    cells = [effect.rule, _counted(effect.without)]
    for share in (effect.seen, effect.unseen):
        cells += [_counted(share), _change(share, effect.without)]
    return f"| {' | '.join(cells)} |"


def _habits(card: Card) -> list[str]:
    rows = [
        f"| {' | '.join((rule, *map(_counted, shares.values())))} |" for rule, shares in card.habits.items()
    ]
    return [*_head("rule", *card.candidates), *rows]


def _counted(share: Share) -> str:
    return f"{_percent(share)} of {share.total}" if share.total else "–"


def _percent(share: Share) -> str:
    return "–" if share.estimate is None else f"{100 * share.estimate:.0f} %"


def _interval(share: Share) -> str:
    low, high = share.interval
    return f"{100 * low:.0f} … {100 * high:.0f} %"


def _change(new: Share, old: Share) -> str:
    if new.estimate is None or old.estimate is None:
        return "–"
    found, low, high = (100 * value for value in difference(new, old))
    return f"{found:+.0f} ({low:+.0f} … {high:+.0f})"


def loss_curve(training: Mapping[str, Any]) -> bytes:
    """Loss a token by step, as an SVG file.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    losses: Sequence[float] = training["losses"]
    means = [sum(losses[max(0, end - WINDOW) : end]) / min(WINDOW, end) for end in range(1, len(losses) + 1)]

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        axis.plot(range(1, len(losses) + 1), losses, color="#c9d6e6", linewidth=0.6, label="a step")
        axis.plot(range(1, len(means) + 1), means, color="#2f5d92", linewidth=1.4, label=f"mean of {WINDOW}")
        for step in accumulate(stage["steps"] for stage in training["recipe"]["stages"][:-1]):
            axis.axvline(step, color="#999999", linestyle=":", linewidth=1)
        axis.set_xlabel("step")
        axis.set_ylabel("loss, nats a token")
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.legend(frameon=False)

    return draw_picture(draw, width=7.2, height=2.8)
