"""Evidence: compact records of simulations without their messages, which the gate reads.

The module also identifies each side by its agent, user, world and settings, and describes them for reports.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, NamedTuple, Self

from pydantic import FailFast, Field, model_validator

from pytest_trace2evolve.records.base import Count, Later, LaterTuple, Record
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.score import RewardRecord, UnitFloat
from pytest_trace2evolve.records.task import RewardBasis
from pytest_trace2evolve.records.task_revision import revision_name
from pytest_trace2evolve.records.trace_check import CheckOutcome
from pytest_trace2evolve.utils.canonical import canonical_json, digest

EVIDENCE_SCHEMA = 1
"""Version of the evidence format; a file of a different version is rejected."""

DUMMY_USER = "dummy_user"
"""tau2's name for the absent user of a solo run."""

SCRIPTED_USER = "script"
"""The recorded user of synthetic cases, who follows the script of each case."""

SLOT_USER = "slots-3"
"""The recorded user of written tasks; the number rises whenever the same script could give other messages."""

GOLD_USER = "gold"
"""The recorded user for agents that are not models, on tasks without a script."""

ORACLE = "oracle"
"""The recorded agent that performs gold actions."""

NOP = "nop"
"""The recorded agent that does nothing."""

REFERENCE_AGENTS = frozenset({ORACLE, NOP})
"""The two reference agents: best possible and do-nothing."""

CHAT = "chat"
"""The recorded agent that talks through a model."""

REPLAY = "replay"
"""The agent that reads recorded runs instead of talking."""

NOT_RECORDED = "not recorded"
"""The text in reports for a fact that the evidence does not record."""


class ActionCount(Record):
    """Gold actions of one tool type: the number in a task, and the number that a simulation matched."""

    total: Count
    matched: Count | None = None

    @model_validator(mode="after")
    def _check_matched(self) -> Self:
        if self.matched is not None and self.matched > self.total:
            raise ValueError(f"{self.matched} of {self.total} actions matched")
        return self


class SimulationEvidence(RewardRecord):
    """One simulation as the gate sees it.

    Attributes:
        actions: Gold actions by tool type. The totals come from the task, so they are known even if the
            simulation was not measured (`matched` is then None).
        usage: The usage of the agent's and the user's models, if the trace records it.
        invariants: The number of breaches by invariant; None if nothing was measured or checked. The number
            of collateral changes is present if, and only if, they were looked for.
        checks: The outcomes of the project's own checks by id; empty if there are none, or nothing was
            measured.
        models: The models that a project's own agent called; empty if it called none, or for evidence that
            does not record them.
        lost: The number of runs that lost the simulation before it was measured.
        critical: Whether the task has the tag `critical`, so that a confirmed fall of it is always harm.
        turns: The number of the agent's messages after its greeting; None if it was not recorded.
        seconds: The time that the agent's model took to answer; None if it was not recorded, or if any answer
            came from a cache, a journal or a cassette.
    """

    id: str
    task_id: str
    trial: Count
    termination_reason: str
    recorded_reward: float | None = None
    components: dict[RewardBasis, UnitFloat] = Field(default_factory=dict)
    actions: dict[str, ActionCount] = Field(default_factory=dict)
    task_digest: str
    seed: int | None = None
    cost: float | None = None
    note: str = ""
    usage: dict[Requestor, Usage] = Field(default_factory=dict)
    invariants: dict[Invariant, Count] | None = None
    checks: dict[str, CheckOutcome] = Field(default_factory=dict)
    models: tuple[str, ...] = ()
    lost: Count = 0
    critical: bool = False
    turns: Count | None = None
    seconds: Annotated[float, Field(ge=0)] | None = None

    def action_share(self, *kinds: str) -> float | None:
        """Share of gold actions matched, over `kinds` of tools (all kinds if none is named).

        None if the task names no such action or the simulation was not measured.
        """
        counts = [count for kind, count in self.actions.items() if not kinds or kind in kinds]
        total = sum(count.total for count in counts)
        if not total or any(count.matched is None for count in counts):
            return None
        return sum(count.matched or 0 for count in counts) / total


class FreshTrials(Record):
    """Fresh trials of one flagged task on both sides, in order. They do not enter any estimate."""

    baseline: tuple[SimulationEvidence, ...]
    candidate: tuple[SimulationEvidence, ...]


class CandidateRef(Record):
    """The candidate that produced the evidence."""

    id: str
    digest: str
    parent: str | None = None
    informed_by: tuple[str, ...] = ()


class Mode(NamedTuple):
    """The domain, and whether the agent works alone (solo). Comparable runs agree in both."""

    domain: str
    solo: bool = False

    def __str__(self) -> str:
        return f"{self.domain!r} in solo mode" if self.solo else repr(self.domain)

    @property
    def short_text(self) -> str:
        return f"{self.domain}, solo" if self.solo else self.domain


class Code(Record):
    """Identifies the code behind an agent, a user or a world; see `evidence.identity.code_of`.

    Attributes:
        files: Digests of project files by path.
        distributions: Versions of installed distributions by name.
        fingerprint: The identity that the code declares itself, instead of files and distributions.
        unknown: The reason why the code cannot be identified; empty if it can.
        identity: `FILE_IDENTITY`; 1 in older evidence, which names fewer files, or definitions in them, and
            has no such field.
    """

    files: dict[str, str] = Field(default_factory=dict)
    distributions: dict[str, str] = Field(default_factory=dict)
    fingerprint: str | None = None
    unknown: str = ""
    identity: Annotated[int, Field(exclude_if=lambda value: value == 1)] = 1

    @property
    def digest(self) -> str | None:
        """One digest of everything; None if the code cannot be identified."""
        return None if self.unknown else digest(self.model_dump(mode="json"))


FILE_IDENTITY = 2
"""The version of the rules by which code is identified."""


def code_differences(old: Code | None, new: Code | None) -> Iterator[str]:
    """Yield the names of the files and distributions that differ, or both fingerprints if they differ.

    Yields nothing if either side is not recorded or not identified. Between two versions of identities, only
    the names that both sides recorded are compared.
    """
    if old is None or new is None or old.unknown or new.unknown or old == new:
        return
    if old.fingerprint != new.fingerprint:
        yield f"fingerprint {old.fingerprint!r} and {new.fingerprint!r}"
        return
    for before, after in ((old.files, new.files), (old.distributions, new.distributions)):
        names = {*before, *after} if old.identity == new.identity else before.keys() & after.keys()
        yield from (name for name in sorted(names) if before.get(name) != after.get(name))


class Settings(Record):
    """The settings of an agent or a user; None means not recorded.

    `guidelines` is the digest of the text that a simulated user follows. Built-in agents and users have no
    `code`.
    """

    implementation: str | None = None
    model: str | None = None
    arguments: dict[str, object] | None = None
    guidelines: str | None = None
    code: Later[Code] = None


WORLD_TEXTS = ("(policy)", "(tools)")
"""Keys in the `files` of an agent's code for the world's texts that belong to the candidate."""


def with_texts(settings: Settings, texts: Mapping[str, str]) -> Settings:
    """Return an agent's settings with digests of the world's texts that belong to the candidate.

    Args:
        settings: The settings of an agent.
        texts: Digests by the keys of `WORLD_TEXTS`; empty if the suite locks both texts.
    """
    if not texts:
        return settings
    code = settings.code or Code()
    return settings.model_copy(update={"code": code.model_copy(update={"files": {**code.files, **texts}})})


def split_texts(settings: Settings) -> tuple[Settings, dict[str, str]]:
    """Return an agent's settings without the world's texts, and these texts: the reverse of `with_texts`."""
    code = settings.code
    texts = {} if code is None else {key: code.files[key] for key in WORLD_TEXTS if key in code.files}
    if code is None or not texts:
        return settings, {}
    files = {key: value for key, value in code.files.items() if key not in texts}
    rest = code.model_copy(update={"files": files})
    return settings.model_copy(update={"code": None if rest == Code() else rest}), texts


class Identity(Record):
    """The agent, the user and the code of the world in the simulations of a suite."""

    agent: Settings = Settings()
    user: Settings = Settings()
    world: Code | None = None


class CheckOrigin(Record):
    """Identifies one of the project's own checks.

    Attributes:
        kind: The subject of the check, such as `consent`.
        code: The code of the check's function; None for a judged check.
        rubric: Digest of the rubric of a judged check; None for a function.
    """

    kind: str
    code: Code | None = None
    rubric: str | None = None


class LockParts(Record):
    """Digests of the parts of a suite's lock besides its tasks, so that a difference can be named."""

    policy: str
    tools: str
    data: str


class Provenance(Record):
    """The origin of evidence: everything that must agree before two sides may be compared.

    A field that is None was not recorded. Fields that came after the first version are optional, so that
    older files stay valid.

    Attributes:
        lock: Digest of the suite's lock.
        lock_parts: Digests of the lock's parts.
        world: The code of the world that the simulations ran in.
        provider_version: Version of the provider's package, which is recorded but never compared.
        task_revision: The revision of the benchmark's tasks; see `records.task_revision`.
        policy: Digest of the policy's text if a foreign results file contains it.
        max_steps, max_errors: Step and error budgets of a simulation.
        timeout: Time limit of a simulation in seconds of wall-clock time.
        call_timeout: Seconds that a project's own function had for each step, after which its simulation
            fails. None for other agents: a simulation is lost, and not scored, if their answer is late.
        run_id: Id of the run that measured the evidence; for an extended baseline, of the first run.
        created_at: Time of that measurement (ISO 8601).
        extended_at: Time of the run that last added trials.
        replaces: For a baseline, digest of the evidence of the previous baseline.
        promoted_from: For a baseline, id of the run whose verdict promoted it.
        checks: The project's own checks that measured the simulations, by id; None if there are none.
    """

    domain: str
    provider: str
    suite: str | None = None
    lock: str | None = None
    lock_parts: LockParts | None = None
    world: Code | None = None
    provider_version: str | None = None
    task_revision: Later[str] = None
    policy: str | None = None
    scorer_version: int | None = None
    candidate: CandidateRef | None = None
    agent: Settings = Settings()
    user: Settings = Settings()
    judge: str | None = None
    max_steps: int | None = None
    max_errors: int | None = None
    timeout: float | None = None
    call_timeout: Later[float] = None
    run_id: str | None = None
    created_at: str | None = None
    extended_at: Later[str] = None
    replaces: str | None = None
    promoted_from: str | None = None
    sources: tuple[str, ...] = ()
    checks: Later[dict[str, CheckOrigin]] = None

    @property
    def mode(self) -> Mode:
        """The domain, and whether the user was a dummy."""
        return Mode(self.domain, self.user.implementation == DUMMY_USER)

    @property
    def is_conversational(self) -> bool:
        """Whether the agent had to talk in order to act. The oracle on tasks without a script did not."""
        return (self.agent.implementation, self.user.implementation) != (ORACLE, GOLD_USER)


class Evidence(Record):
    """One side of a comparison: the simulations of one candidate on one suite or file."""

    schema_version: int = EVIDENCE_SCHEMA
    provenance: Provenance
    simulations: Annotated[tuple[SimulationEvidence, ...], FailFast()]

    @model_validator(mode="after")
    def _check_unique_trials(self) -> Self:
        seen: set[tuple[str, int]] = set()
        for simulation in self.simulations:
            key = (simulation.task_id, simulation.trial)
            if key in seen:
                raise ValueError(f"two simulations of task {key[0]!r}, trial {key[1]}")
            seen.add(key)
        ids = [simulation.id for simulation in self.simulations]
        if len(set(ids)) < len(ids):
            raise ValueError(
                f"two simulations have the id {next(name for name in ids if ids.count(name) > 1)!r}"
            )
        return self


class SideDescription(Record):
    """The implementations, models and settings that made one side's simulations; None if not recorded.

    `called_models` are the models that a project's own agent called, even if its settings name others.
    """

    agent: str | None = None
    model: str | None = None
    parameters: dict[str, object] | None = None
    user: str | None = None
    user_model: str | None = None
    called_models: tuple[str, ...] = ()
    task_revision: str | None = None

    @property
    def text(self) -> str:
        agent = self.agent or NOT_RECORDED
        if self.model is not None or self.parameters:  # a script or a program has neither
            parameters = sorted((self.parameters or {}).items())
            is_called_only = self.model is None and bool(self.called_models)
            settings = [] if is_called_only else [f"model {self.model or NOT_RECORDED}"]
            settings += [
                f"{name} {value if isinstance(value, str) else canonical_json(value)}"
                for name, value in parameters
            ]
            settings += ["parameters not recorded"] if self.parameters is None else []
            agent = f"{agent}, {', '.join(settings)}"
        if self.called_models:
            agent = f"{agent}, called {', '.join(self.called_models)}"
        user_model = f", model {self.user_model}" if self.user_model else ""
        tasks = f"; tasks of {revision_name(self.task_revision)}" if self.task_revision else ""
        return f"agent {agent}; user {self.user or NOT_RECORDED}{user_model}{tasks}"


class ComparedSides(Record):
    """Both sides of a comparison, and the differences between their agents that the candidate declares.

    Attributes:
        changed_code: The files of the agent's code that differ.
        is_same_candidate: Whether both sides are the same candidate id, although its text or the code of the
            agent differs. The run then compares the working tree with an earlier state.
    """

    baseline: SideDescription
    candidate: SideDescription
    declared: tuple[str, ...] = ()
    changed_code: LaterTuple[str] = ()
    is_same_candidate: Annotated[bool, Field(exclude_if=lambda value: not value)] = False

    @property
    def lines(self) -> list[str]:
        """The lines that describe both sides in a report: one if they are equal, otherwise one for each."""
        if self.baseline == self.candidate:
            return [f"both sides: {self.baseline.text}"]
        lines = [f"baseline: {self.baseline.text}", f"candidate: {self.candidate.text}"]
        changes = ", ".join(self.declared)
        return [*lines, f"declared changes: {changes}"] if changes else lines

    @property
    def undeclared_model_note(self) -> str:
        """One line if the agents called different models although no setting differs; otherwise empty."""
        old, new = self.baseline, self.candidate
        if old.model != new.model or old.called_models == new.called_models:
            return ""
        if not old.called_models or not new.called_models:  # not recorded on one side
            return ""
        return (
            f"the agent called {', '.join(old.called_models)} on the baseline and "
            f"{', '.join(new.called_models)} on the candidate, although no candidate sets another model; if "
            "the change is intended, set model in the candidate's file"
        )


def describe_side(origin: Provenance, called_models: Iterable[str] = ()) -> SideDescription:
    return SideDescription(
        agent=origin.agent.implementation,
        model=origin.agent.model,
        parameters=origin.agent.arguments,
        user=origin.user.implementation,
        user_model=origin.user.model,
        called_models=tuple(sorted(called_models)),
        task_revision=origin.task_revision,
    )
