"""The arms of an experiment: who answers in each, at the end, on the way there, and with fewer adapters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.score import Unit
from research.trace.agents import Policy
from research.trace.plan import POINTS, Plan, Training

ARMS: Mapping[str, str] = {
    "base": "the base model, no training",
    "direct": "one adapter, by GRPO on training tasks of the target, paid by the target's reward",
    "merged": "one adapter, by GRPO in the environments of all selected capabilities together",
    "single": "the best of the routed arm's adapters alone, chosen on validation tasks",
    "weight-merge": "the routed arm's adapters added up in weight space",
    "routed": "an adapter a capability, the base model routes once a task",
    "routed-turns": "the same, routed anew after each message of the customer",
    "oracle-routed": "the same by known labels",
    "control": "one adapter for a capability that was not selected",
    "gepa": "no adapter: an instruction, evolved from sentences of the rulebook",
    "single-whole": "the best of single adapters that got the whole budget each: more than the others in all",
}
"""All arms, and what each is."""

ROUTED, PRIMARY = "routed", "merged"
"""The primary comparison, named before any of it is measured: `routed` less `merged`, on all target tasks.
Both train in the same environments with the same rollouts; an adapter for each, and a router, is what
differs."""

CALIBRATED = 100 * 16
"""Rollouts of one environment's calibration, as `docs/environments.md` has it."""

CURVED = ("direct", "merged", "routed", "oracle-routed", "control", "gepa", "single-whole")
"""Arms that are evaluated on the way too."""

COUNTED = ("routed", "oracle-routed")
"""Arms that are evaluated with fewer adapters too."""

MERGES = {"weights_mean": "1/N", "weights_sum": "1"}
"""Adapters that are added up, and the weight of each in it."""


class Chosen(Record):
    """What one seed chose on validation tasks.

    Attributes:
        single, whole: The capability of the best adapter.
        merge: The better of `MERGES`.
        figures: Mean reward of each adapter that could be chosen.
        rollouts: Spent on choosing, by arm.
    """

    single: str
    whole: str
    merge: str
    figures: dict[str, Unit]
    rollouts: dict[str, int]


@dataclass(frozen=True)
class Piece:
    """One evaluation.

    Attributes:
        name: Its file's, without an ending.
        point: The share of the budget that was spent.
        count: How many adapters are routed to; 0 where nothing is left out.
    """

    arm: str
    point: float = 1.0
    count: int = 0

    @property
    def name(self) -> str:
        """Of its file, without an ending."""
        at = f"-at-{self.point:g}" if self.point < 1 else ""
        return f"{self.arm}{at}{f'-with-{self.count}' if self.count else ''}"


def pieces_of(plan: Plan) -> tuple[Piece, ...]:
    """All evaluations of one seed."""
    fewer = range(1, len(plan.capabilities))
    return (
        *map(Piece, ARMS),
        *(Piece(arm, point) for arm in CURVED for point in POINTS),
        *(Piece(arm, count=count) for arm in COUNTED for count in fewer),
    )


def candidates_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    """By arm, the adapters between which validation chooses."""
    return {
        "single": tuple(f"share_{one}" for one in plan.capabilities),
        "single-whole": tuple(f"whole_{one}" for one in plan.capabilities),
        "weight-merge": tuple(MERGES),
    }


def chosen_of(plan: Plan, figures: Mapping[str, float]) -> Chosen:
    """The best of each; of equal ones the first."""
    groups = candidates_of(plan)
    best = {arm: max(names, key=lambda name: figures[name]) for arm, names in groups.items()}
    each = plan.validation * len(plan.cells)
    return Chosen(
        single=best["single"].removeprefix("share_"),
        whole=best["single-whole"].removeprefix("whole_"),
        merge=best["weight-merge"],
        figures=dict(figures),
        rollouts={arm: each * len(names) for arm, names in groups.items()},
    )


def trained_for(plan: Plan, arm: str, whole: str) -> Sequence[Training]:
    """The trainings whose rollouts an arm spends; `whole` is what `single-whole` chose."""
    names = {
        "direct": ("direct",),
        "merged": ("merged",),
        "control": ("control",),
        "single-whole": (f"whole_{whole}",),
    }
    if arm in ("single", "weight-merge", *COUNTED, "routed-turns"):
        wanted = tuple(f"share_{one}" for one in plan.capabilities)
    else:
        wanted = names.get(arm, ())
    return [one for one in plan.trainings() if one.name in wanted]


def label_of(plan: Plan, arm: str) -> str:
    """How an arm is called where it is shown: with what it gets more than the others."""
    return f"{arm} (×{len(plan.capabilities)})" if arm == "single-whole" else arm


def calibrated_for(plan: Plan, arm: str) -> int:
    """Rollouts by which the environments of an arm's adapters were calibrated; in no budget."""
    if arm in ("base", "direct", "gepa"):
        return 0
    return CALIBRATED * (1 if arm == "control" else len(plan.capabilities))


def environments_for(plan: Plan, arm: str) -> tuple[str, ...]:
    """Where an arm is measured: the base and the control where the control learnt, too."""
    return (*plan.capabilities, plan.control) if arm in ("base", "control") else plan.capabilities


def scenarios_for(plan: Plan, arm: str) -> int:
    """Rollouts of an arm in environments, for each seed."""
    return len(environments_for(plan, arm)) * plan.scenarios * plan.repeats


def policy_of(plan: Plan, piece: Piece, chosen: Chosen, instructions: Mapping[str, str]) -> Policy:
    """Who answers in an evaluation.

    Args:
        plan: The experiment.
        piece: The evaluation.
        chosen: What was chosen on validation tasks.
        instructions: What prompt evolution found, by share of its budget.
    """
    if piece.arm == "base":
        return Policy()
    if piece.arm == "gepa":
        return Policy(instruction=instructions[f"{piece.point:g}"])
    if piece.arm == "single":
        return Policy(adapter=f"share_{chosen.single}")
    if piece.arm == "weight-merge":
        return Policy(adapter=chosen.merge)
    known = {one.name: one for one in plan.trainings()}
    if piece.arm in (*COUNTED, "routed-turns"):
        used = plan.capabilities[: piece.count or len(plan.capabilities)]
        return Policy(
            table=tuple((one, adapter_at(known[f"share_{one}"], piece.point)) for one in used),
            oracle=piece.arm == "oracle-routed",
            each_turn=piece.arm == "routed-turns",
        )
    name = f"whole_{chosen.whole}" if piece.arm == "single-whole" else piece.arm
    return Policy(adapter=adapter_at(known[name], piece.point))


def adapter_at(training: Training, point: float) -> str:
    """An adapter's name, at the end of its training or at a share of its steps: its folder's, too."""
    return training.name if point == 1 else f"{training.name}-{round(point * training.steps):06d}"
