"""What an experiment found: means of every arm with their intervals, from the pieces that are kept."""

from collections.abc import Callable, Sequence

from pytest_trace2evolve.errors import ConfigError, TrainingError
from pytest_trace2evolve.improve.routing import confusion_of
from pytest_trace2evolve.records.adapter import MANIFEST, NONE, AdapterManifest, Confusion
from research.trace.arms import (
    ARMS,
    COUNTED,
    CURVED,
    ROUTED,
    Chosen,
    Piece,
    calibrated_for,
    pieces_of,
    scenarios_for,
    trained_for,
)
from research.trace.evaluate import Environmental, Evaluation
from research.trace.identity import tasks_digest
from research.trace.intervals import Mean, difference_of, mean_of
from research.trace.plan import POINTS, Plan
from research.trace.prompts import Found
from research.trace.results import Arm, Figures, Learnt, Point, Results, Versus
from research.trace.store import Seed, read

BASE = "base"


def results_of(seeds: Sequence[Seed], earlier: Sequence[int] = ()) -> Results:
    """Put the pieces together.

    Args:
        earlier: After how many seeds results were told before.

    Raises:
        TrainingError: an adapter was trained otherwise than the plan says, or an arm did not get the rollouts
            that the plan gives it.
        ConfigError: a piece is damaged, or other tasks were played than the plan's.
    """
    plan = seeds[0].plan
    for job in (job for seed in seeds for job in seed.jobs):
        job.manifest()
    choices = tuple(read(seed.chosen, Chosen) for seed in seeds)
    points = [
        Point(
            arm=arm,
            at=round(share * plan.rollouts),
            rewards=_figures(plan, _read(seeds, Piece(arm, share)), _reward),
            wishes=_figures(plan, _read(seeds, Piece(arm, share)), _wish),
        )
        for arm in CURVED
        for share in (*POINTS, 1.0)
    ]
    whole = len(plan.capabilities)
    counted = [
        Point(
            arm=arm,
            at=count,
            rewards=_figures(plan, _read(seeds, Piece(arm, count=count % whole)), _reward),
            wishes=_figures(plan, _read(seeds, Piece(arm, count=count % whole)), _wish),
        )
        for arm in COUNTED
        for count in range(1, whole + 1)
    ]
    return Results(
        plan=plan,
        arms=tuple(_arm(seeds, choices, name) for name in ARMS),
        against=tuple(_versus(seeds, name) for name in ARMS if name != ROUTED),
        control=_learnt(seeds),
        curve=tuple(points),
        adapters=tuple(counted),
        choices=choices,
        instructions=tuple(read(seed.found, Found).instructions["1"] for seed in seeds),
        confusion=_confusion(plan, _read(seeds, Piece(ROUTED))[0]),
        rerouted=_rerouted(_read(seeds, Piece(ROUTED))),
        evaluated=_evaluated(seeds),
        earlier=tuple(earlier),
    )


def spent_of(seed: Seed, arm: str, chosen: Chosen) -> int:
    """Rollouts of training that an arm got, as its adapters' manifests and its search tell.

    Raises:
        TrainingError: they are not what the plan gives it.
        ConfigError: a piece is damaged.
    """
    if arm == BASE:
        return 0
    if arm == "gepa":
        spent = read(seed.found, Found).rollouts
    else:
        files = [seed.adapters / one.name / MANIFEST for one in trained_for(seed.plan, arm, chosen.whole)]
        spent = sum(read(file, AdapterManifest).rollouts for file in files)
    if spent != seed.plan.rollouts:
        raise TrainingError(
            f"{seed.folder}: arm {arm!r} got {spent} rollouts, and the plan gives {seed.plan.rollouts}"
        )
    return spent


def _arm(seeds: Sequence[Seed], choices: Sequence[Chosen], name: str) -> Arm:
    plan = seeds[0].plan
    own, base = _read(seeds, Piece(name)), _read(seeds, Piece(BASE))
    [spent] = {spent_of(seed, name, chosen) for seed, chosen in zip(seeds, choices, strict=True)}
    others = plan.rollouts * (len(plan.capabilities) - 1) if name == "single-whole" else 0
    cells = own[0].cells
    return Arm(
        name=name,
        trained=spent,
        besides=others,
        choosing=choices[0].rollouts.get(name, 0),
        calibrated=calibrated_for(plan, name),
        rewards=_figures(plan, own, _reward),
        change=_figures(plan, own, _reward, base),
        wishes=_figures(plan, own, _wish),
        environments=_environments(seeds, name),
        cells={
            cell.name: _mean(own, _reward, [place for place, one in enumerate(cells) if one == cell.name])
            for cell in plan.cells
        },
    )


def _versus(seeds: Sequence[Seed], name: str) -> Versus:
    plan, own, other = seeds[0].plan, _read(seeds, Piece(ROUTED)), _read(seeds, Piece(name))
    return Versus(
        arm=name,
        rewards=_figures(plan, own, _reward, other),
        wishes=_figures(plan, own, _wish, other),
    )


def _read(seeds: Sequence[Seed], piece: Piece) -> list[Evaluation]:
    found = []
    for seed in seeds:
        file = seed.evaluation(piece)
        found.append(read(file, Evaluation))
        if tasks_digest(found[-1].tasks) != seed.plan.targets:
            raise ConfigError(
                f"{file}: other tasks were played than the plan's; remove it, and it is made again"
            )
    return found


Value = Callable[[Evaluation], Sequence[float]]


def _reward(found: Evaluation) -> Sequence[float]:
    return found.rewards


def _wish(found: Evaluation) -> Sequence[float]:
    return found.wishes


def _figures(
    plan: Plan, found: Sequence[Evaluation], value: Value, base: Sequence[Evaluation] = ()
) -> Figures:
    sizes = {cell.name: len(cell.capabilities) for cell in plan.cells}
    places = {
        size: [place for place, cell in enumerate(found[0].cells) if sizes[cell] == size] for size in (1, 2)
    }
    one, two, every = (
        _mean(found, value, own, base) for own in (places[1], places[2], sorted(places[1] + places[2]))
    )
    return Figures(one=one, two=two, every=every)


def _mean(
    found: Sequence[Evaluation], value: Value, places: Sequence[int], base: Sequence[Evaluation] = ()
) -> Mean:
    cells = [found[0].cells[place] for place in places]
    table = [[value(one)[place] for place in places] for one in found]
    if not base:
        return mean_of(table, cells)
    return difference_of(table, [[value(one)[place] for place in places] for one in base], cells)


def _environments(seeds: Sequence[Seed], arm: str) -> Mean:
    found = [read(seed.environmental(arm), Environmental) for seed in seeds]
    names = seeds[0].plan.capabilities
    table = [[reward for name in names for reward in one.rewards[name]] for one in found]
    return mean_of(table, [name for name in names for _ in found[0].rewards[name]])


def _learnt(seeds: Sequence[Seed]) -> Learnt:
    """What the control's adapter learnt of what it was trained for."""
    name = seeds[0].plan.control
    before, after = (
        [read(seed.environmental(arm), Environmental).rewards[name] for seed in seeds]
        for arm in (BASE, "control")
    )
    cells = [name] * len(before[0])
    return Learnt(
        environment=name,
        before=mean_of(before, cells),
        after=mean_of(after, cells),
        change=difference_of(after, before, cells),
    )


def _confusion(plan: Plan, found: Evaluation) -> Confusion:
    """Of one seed: the base routes, which no training changed, so another seed says the same of a task."""
    alone = set(plan.capabilities)
    pairs = zip(found.cells, found.routed, strict=True)
    return confusion_of([(cell, chosen or NONE) for cell, chosen in pairs if cell in alone])


def _rerouted(found: Sequence[Evaluation]) -> int:
    """Tasks that not every seed routed alike: where two labels are as good as equal, rounding decides."""
    return sum(len(set(chosen)) > 1 for chosen in zip(*(one.routed for one in found), strict=True))


def _evaluated(seeds: Sequence[Seed]) -> int:
    plan = seeds[0].plan
    each = len(pieces_of(plan)) * plan.tasks * len(plan.cells)
    return len(seeds) * (each + sum(scenarios_for(plan, arm) for arm in ARMS))
