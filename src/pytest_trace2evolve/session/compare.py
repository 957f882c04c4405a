"""Compares and gates two sets of evidence, without pytest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.errors import ResultsError, SuiteError
from pytest_trace2evolve.evidence.baselines import stream_evidence
from pytest_trace2evolve.gate.columns import Columns, ColumnsBuilder, build_columns
from pytest_trace2evolve.gate.comparable import (
    agent_changes,
    provenance_differences,
    unrecorded_fields,
)
from pytest_trace2evolve.gate.decide import GateInput, decide
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY
from pytest_trace2evolve.project.policies import find_policy
from pytest_trace2evolve.records.evidence import ComparedSides, Evidence, Provenance, describe_side
from pytest_trace2evolve.records.verdict import Goal, Label, Verdict
from pytest_trace2evolve.session.evidence_sources import load_evidence

if TYPE_CHECKING:
    from pytest_trace2evolve.project.project import Project
    from pytest_trace2evolve.project.suites import Suite
    from pytest_trace2evolve.records.protocols import Judge
    from pytest_trace2evolve.session.trace_checks import TraceChecks
    from pytest_trace2evolve.worlds.registry import Worlds


@dataclass(frozen=True)
class Side:
    """One side of a comparison: its name, provenance, simulations as columns, and notes.

    `evidence` and `files` hold the whole evidence and the paths of its results files, if they are kept.
    """

    name: str
    provenance: Provenance
    columns: Columns
    notes: tuple[str, ...] = ()
    evidence: Evidence | None = None
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """A verdict on two sides, with the names and settings of both.

    `sides` are both sides if their evidence is kept, else None.
    """

    verdict: Verdict
    baseline_name: str
    candidate_name: str
    compared: ComparedSides
    notes: tuple[str, ...]
    sides: tuple[Side, Side] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        compared = self.compared.model_dump(mode="json")
        return {**self.verdict.to_json(), "compared": compared, "notes": list(self.notes)}


def compare(
    baseline: Sequence[Path],
    candidate: Sequence[Path],
    worlds: "Worlds | None" = None,
    *,
    policy: str | None = None,
    goal: Goal = Goal.IMPROVE,
    provider: str | None = None,
    project: "Project | None" = None,
    suite: str | None = None,
    split: str | None = None,
    judge: "Judge | None" = None,
    keeps_evidence: bool = False,
) -> Comparison:
    """Gate all tasks common to both sides, or those of a suite or split.

    Without `suite`, two sides of the same suite of the project are gated with that suite's estimand.

    Evidence from files is labelled *development*, because its earlier readers are unknown. The sides may be
    of different agents, since no candidate is promoted here; a note names each difference.

    Args:
        worlds: Opens the worlds that score results files; None for those of the project.
        keeps_evidence: Whether the result holds the evidence of both sides, for a report page.

    Raises:
        PolicyError: the policy is unknown or broken.
        ResultsError: a side cannot be read, is empty, or cannot be compared with the other.
        SuiteError, LockError: the suite or split is unknown, or differs from the lock.
    """
    gate_policy = find_policy(policy or DEFAULT_POLICY, project)
    trace_checks = _plan_own_checks(project, judge)
    tasks: Mapping[str, str] | None = None
    if project is not None and suite is not None:
        suite_spec = project.suite(suite)
        suite_lock = project.suite_lock(suite_spec, worlds or project.open_worlds())
        if split is not None and split not in suite_lock.splits:
            raise SuiteError(f"suite {suite!r} has no split {split!r}; it has {', '.join(suite_lock.splits)}")
        tasks = suite_lock.tasks if split is None else suite_lock.splits[split]
        provider = provider or suite_spec.provider
    read = partial(read_side, worlds=worlds, provider=provider, judge=judge, project=project)
    old, new = (
        read(paths, trace_checks=trace_checks, keeps_evidence=keeps_evidence)
        for paths in (baseline, candidate)
    )
    _check_comparable(old, new)
    origins = old.provenance, new.provenance
    missing_text = unrecorded_fields(*origins)
    changes = agent_changes(*origins).values()
    left_out: dict[str, str] = {}
    sides = old.columns, new.columns
    if project is not None and suite is not None and tasks is not None:
        mode = project.suite(suite).mode
        if old.provenance.mode != mode:
            raise ResultsError(
                f"suite {suite!r} has domain {mode}, but the runs have {old.provenance.mode}; "
                "name a suite of that domain"
            )
        sides, left_out = _restrict_to_lock(*sides, tasks)
    pairs = pair(*sides).with_left_out(left_out)
    pairs = pairs.with_ungated_checks(_ungated_checks(old.provenance, trace_checks, project))
    judged_suite = project.suite(suite) if project and suite else recorded_suite(*origins, project)
    if judged_suite is not None:
        min_trials = min((int(side.trials.min()) for side in pairs.sides if side.trials.size), default=0)
        gate_policy = gate_policy.for_suite(judged_suite.estimand_of(min_trials))
    verdict = decide(
        GateInput(
            pairs,
            gate_policy,
            goal=goal,
            label=Label.DEVELOPMENT,
            suite=suite,
            split=split,
            expected_tasks=len(tasks) if tasks is not None else len(pairs.names) + len(pairs.left_out),
        )
    )
    compared = ComparedSides(
        baseline=describe_side(old.provenance, old.columns.models),
        candidate=describe_side(new.provenance, new.columns.models),
    )
    return Comparison(
        verdict=verdict,
        baseline_name=_short_name(old.name),
        candidate_name=_short_name(new.name),
        compared=compared,
        notes=(
            *(trace_checks.notes if trace_checks is not None else ()),
            *old.notes,
            *new.notes,
            *((missing_text,) if missing_text else ()),
            *(f"the agents differ: {phrase}" for phrases in changes for phrase in phrases),
            *filter(None, [compared.undeclared_model_note]),
        ),
        sides=(old, new) if keeps_evidence else None,
    )


def recorded_suite(baseline: Provenance, candidate: Provenance, project: "Project | None") -> "Suite | None":
    """Return the project's suite that both sides were measured on; None if there is none."""
    name = candidate.suite
    if project is None or name is None or name != baseline.suite or name not in project.suite_names:
        return None
    suite = project.suite(name)
    is_same = (candidate.provider, candidate.domain) == (suite.provider, suite.domain)
    return suite if is_same else None


def _plan_own_checks(project: "Project | None", judge: "Judge | None") -> "TraceChecks | None":
    """Return the project's own checks; None if it has none."""
    if project is None or not project.may_have_checks:
        return None
    if not (own_checks := project.extensions.trace_checks):
        return None
    from pytest_trace2evolve.session.trace_checks import plan_trace_checks

    return plan_trace_checks(own_checks, project, judge)


def _ungated_checks(
    origin: Provenance, trace_checks: "TraceChecks | None", project: "Project | None"
) -> dict[str, str]:
    """The judged checks of the compared evidence that may not decide, with the reasons.

    The judge that measured saved evidence need not be named again. If a different one is named, the
    agreement of the judge that measured the evidence counts.
    """
    reasons = dict(trace_checks.ungated) if trace_checks is not None else {}
    rubrics = {name: check for name, check in (origin.checks or {}).items() if check.rubric}
    if not rubrics:
        return reasons
    from pytest_trace2evolve.judges.chat import PROMPT_VERSION
    from pytest_trace2evolve.records.agreement import JudgeIdentity
    from pytest_trace2evolve.session.trace_checks import NO_TRACE_CHECKS, ungated_reason

    trace_checks = trace_checks or NO_TRACE_CHECKS
    is_same_judge = origin.judge == getattr(trace_checks.judge, "model", None)
    for name, check_origin in rubrics.items():
        if not (is_same_judge and check_origin == trace_checks.origins.get(name)):
            reasons.pop(name, None)
            identity = JudgeIdentity(
                model=origin.judge or "", prompt=PROMPT_VERSION, rubric=check_origin.rubric or ""
            )
            if reason := ungated_reason(name, identity, project):
                reasons[name] = reason
    return reasons


def _short_name(name: str) -> str:
    """Return a file's name without `.json` or `.json.gz`."""
    return name.removesuffix(".gz").removesuffix(".json")


def read_side(
    paths: Sequence[Path],
    worlds: "Worlds | None",
    provider: str | None,
    judge: "Judge | None",
    *,
    project: "Project | None" = None,
    require_one_agent: bool = False,
    trace_checks: "TraceChecks | None" = None,
    keeps_evidence: bool = False,
) -> Side:
    """Read the simulations of one side from files.

    Args:
        require_one_agent: Whether all files must have the same candidate and agent.
        keeps_evidence: Whether the side holds its evidence and files, which need much more memory.
    """
    name = paths[0].name + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
    builder = ColumnsBuilder()
    is_streamed = len(paths) == 1 and not keeps_evidence
    if is_streamed and (provenance := stream_evidence(paths[0], builder.add)) is not None:
        return _check_not_empty(Side(name, provenance, builder.build()))
    if worlds is None:
        from pytest_trace2evolve.worlds.registry import Worlds

        worlds = Worlds() if project is None else project.open_worlds()
    loaded_evidence = load_evidence(
        paths, worlds, provider, judge, require_one_agent=require_one_agent, trace_checks=trace_checks
    )
    if len(loaded_evidence.sides) != 1:
        domains = ", ".join(side.provenance.mode.short_text for side in loaded_evidence.sides)
        raise ResultsError(f"{name}: holds several domains ({domains}); compare one at a time")
    evidence = loaded_evidence.sides[0]
    side = Side(name, evidence.provenance, build_columns(evidence.simulations), loaded_evidence.notes)
    if keeps_evidence:
        side = replace(side, evidence=evidence, files=tuple(path for path, _ in loaded_evidence.files))
    return _check_not_empty(side)


def _check_not_empty(side: Side) -> Side:
    if not side.columns.size:
        raise ResultsError(f"{side.name}: holds no simulation")
    return side


def _check_comparable(old: Side, new: Side) -> None:
    domains = (old.provenance.domain, new.provenance.domain)
    if domains[0] != domains[1]:
        raise ResultsError(
            f"the baseline has domain {domains[0]!r}, but the candidate has {domains[1]!r}; "
            "only runs of one domain can be compared"
        )
    old_tasks, new_tasks = old.columns.content_digests(), new.columns.content_digests()
    differences = provenance_differences(
        old.provenance, new.provenance, baseline_tasks=old_tasks, candidate_tasks=new_tasks
    )
    if problems := list(differences):
        raise ResultsError(f"{old.name} and {new.name} cannot be compared: {'; '.join(problems)}")


def _restrict_to_lock(
    baseline_columns: Columns, candidate_columns: Columns, tasks: Mapping[str, str]
) -> tuple[tuple[Columns, Columns], dict[str, str]]:
    """Cut both sides to the locked tasks, and leave out tasks whose content differs from the lock."""
    left_out: dict[str, str] = {}
    for side, name in ((baseline_columns, "baseline"), (candidate_columns, "candidate")):
        changed_tasks = [
            task for task, digest in side.content_digests().items() if task in tasks and digest != tasks[task]
        ]
        left_out |= dict.fromkeys(changed_tasks, f"its content on the {name} differs from the lock")
    comparable_tasks = tasks.keys() - left_out.keys()
    return (
        baseline_columns.select_tasks(comparable_tasks),
        candidate_columns.select_tasks(comparable_tasks),
    ), left_out
