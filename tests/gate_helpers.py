"""Builders shared by the tests of the gate, the candidates, the suites and the lock."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from pytest_trace2evolve.gate.decide import GateInput, decide
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.policy import STRICT
from pytest_trace2evolve.project.lock import SuiteLock
from pytest_trace2evolve.records.evidence import ActionCount, SimulationEvidence
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.verdict import CheckStatus, Goal, Label, Verdict

Side = list[SimulationEvidence]


def sim(
    task: str | int,
    reward: float | None = 1.0,
    *,
    trial: int = 0,
    end: str = "user_stop",
    digest: str = "d",
    **actions: tuple[int, int | None],
) -> SimulationEvidence:
    """One simulation; without a reward it is an infrastructure error. `read=(2, 1)`: one matched of two."""
    lost = reward is None
    return SimulationEvidence(
        id=f"{task}-{trial}",
        task_id=str(task),
        trial=trial,
        status=Status.INFRASTRUCTURE_ERROR if lost else Status.MEASURED,
        termination_reason="infrastructure_error" if lost else end,
        reward=reward,
        actions={
            kind: ActionCount(total=total, matched=None if lost else matched)
            for kind, (total, matched) in actions.items()
        },
        task_digest=digest,
    )


def side(*tasks: float | Sequence[float | None] | None, start: int = 0) -> Side:
    """Tasks `start`, `start` + 1 and so on by their rewards: one reward, or one a trial."""
    return [
        sim(number, reward, trial=trial)
        for number, rewards in enumerate(tasks, start=start)
        for trial, reward in enumerate(rewards if isinstance(rewards, Sequence) else [rewards])
    ]


def lost(record: SimulationEvidence, *, before_it_ran: bool = False) -> SimulationEvidence:
    """The same simulation as an infrastructure error; before it ran its gold actions were not known."""
    actions = {} if before_it_ran else record.actions
    totals = {kind: (count.total, None) for kind, count in actions.items()}
    return sim(record.task_id, None, trial=record.trial, digest=record.task_digest, **totals)


def strict(
    baseline: Side, candidate: Side, goal: Goal = Goal.IMPROVE, label: Label = Label.CLEAN, **further: Any
) -> Verdict:
    """The verdict of policy `strict`."""
    return decide(GateInput(pair(baseline, candidate), STRICT, goal=goal, label=label, **further))


def ids(verdict: Verdict, status: CheckStatus) -> set[str]:
    """The checks of a verdict that gave one answer."""
    return {check.id for check in verdict.checks if check.status is status}


class ShopWorld:
    """A world with tasks, splits and texts to digest; nothing in it can be run."""

    provider = "fake"
    domain = "shop"

    def __init__(
        self,
        tasks: Sequence[str] = (),
        splits: Mapping[str, Sequence[str]] | None = None,
        *,
        policy: str = "be kind",
        tools: Sequence[str] = ("find",),
        data: str = "data-1",
        version: str = "1.0",
        said: Mapping[str, str] | None = None,
    ) -> None:
        self._tasks = {name: Task(id=name, user_scenario=(said or {}).get(name, name)) for name in tasks}
        self._splits = {name: list(members) for name, members in (splits or {}).items()}
        self._policy, self._tools, self._data, self._version = policy, tools, data, version

    def tasks(self) -> Mapping[str, Task]:
        return self._tasks

    def splits(self) -> Mapping[str, Sequence[str]]:
        return self._splits

    def policy(self, *, solo: bool = False) -> str:
        return self._policy

    def tools(self, requestor: str) -> list[ToolSchema]:
        offered = self._tools if requestor == "assistant" else ()
        return [ToolSchema(name=name, description="", parameters={}) for name in offered]

    def data_digest(self) -> str:
        return self._data

    def version(self) -> str:
        return self._version


def write_candidate(folder: Path, name: str, *header: str, text: str = "") -> Path:
    """A candidate's file with `id: <name>` and further lines of front matter."""
    path = folder / f"{name}.md"
    lines = ["---", f"id: {name}", *header, "---", text]
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    return path


_NO_NUL = st.characters(exclude_categories=["Cs"], exclude_characters="\0")

NAMES = st.one_of(
    st.text(_NO_NUL, min_size=1, max_size=12),
    st.sampled_from(
        ["[mms_issue]a|b[PERSONA:None]", '"quoted"', "back\\slash", "100", "ünï—码", "a\nb\u2028c"]
    ),
)
"""Task ids and the like, as strange as they come."""

_WORDS = st.text(_NO_NUL, max_size=8)

SUITE_LOCKS = st.builds(
    SuiteLock,
    definition=_WORDS,
    provider=_WORDS,
    provider_version=_WORDS,
    domain=_WORDS,
    scorer_version=st.integers(0, 99),
    policy=_WORDS,
    tools=_WORDS,
    data=_WORDS,
    splits=st.dictionaries(
        NAMES, st.dictionaries(NAMES, _WORDS, min_size=1, max_size=4), min_size=1, max_size=3
    ),
)
"""Locks of one suite; a suite has no empty split."""
