"""Every error this package raises on purpose, in one tree.

    Trace2EvolveError
    ├── ConfigError               something the user wrote is wrong: the run does not start
    │   ├── CandidateError        candidates/*.md
    │   ├── AdapterError          an adapter is unknown, damaged, of another base, or not promoted
    │   ├── SuiteError            suites/*.toml
    │   ├── LockError             suites.lock disagrees with a suite or with the benchmark
    │   ├── PolicyError           unknown gate policy or goal
    │   ├── CaseError             a synthetic case or its customer script is damaged
    │   ├── GeneratorError        an environment is unknown, cannot be made, or breaks its promises
    │   ├── CassetteError         a cassette cannot be written, trusted or played back as asked
    │   ├── EndpointError         an endpoint refuses the key, the model or the request: every further one too
    │   ├── ModelFolderError      a model's or adapter's folder cannot be served
    │   └── MissingExtraError     an optional package is not installed
    ├── LedgerError               a look at a trace cannot be recorded: the trace is not shown
    ├── GitHubError               GitHub refuses a request, or does not answer
    ├── ResultsError              a results file or baseline cannot be trusted
    ├── WorldError                a benchmark domain cannot be opened, or its data are at odds with a task
    ├── TraceError                one trace is malformed: it is not measured, and never scored
    ├── JudgeError                the judge of natural-language assertions gave no usable answer
    ├── TrainingError             a training cannot begin, cannot go on, or learns nothing
    ├── LabelError                a labeller's run cannot be trusted: none of its labels counts
    ├── ParticipantError          an agent or a user gave no message that the conversation can continue with
    │   ├── AgentCodeError        the agent's own code raised, or returned no message: the agent failed
    │   └── ContextWindowError    the conversation no longer fits the model
    ├── SandboxError              code that a model wrote cannot be run
    │   ├── SourceRefusedError    its source breaks the rules: nothing of it ran
    │   ├── GeneratedCodeError    it raised, or its answer is no JSON: the sandbox goes on
    │   └── SandboxEndedError     it was stopped while it ran: every further call says so again
    ├── StorageError              the run cannot store its evidence, or stored evidence was changed: it ends
    ├── BudgetError               the run's budget is spent, or the run was stopped: a simulation is not made
    └── InfrastructureError       a simulation was lost to the machine or the network, not to the agent
        └── RequestRefusedError   an endpoint that answers others refuses this request for its content

A message is one line that names the value, the cause and the mend. `TaskFailed` is not an error of
this tree: it is how an item says that the agent failed its task.
"""

import difflib
from collections.abc import Iterable
from typing import NoReturn, Self


def nearest(wrong: str, known: Iterable[str]) -> str:
    """The mend of a name that does not exist: the known one that it resembles, or all of them."""
    names = sorted(known)
    near = similar(wrong, names, most=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names) or 'none'}"


def similar(wrong: str, known: Iterable[str], *, most: int, cutoff: float = 0.4) -> list[str]:
    """At most so many known names that resemble a wrong one, the most similar first; none of a long text."""
    return difflib.get_close_matches(wrong, list(known), n=most, cutoff=cutoff) if len(wrong) <= 200 else []


def refuse_taken(what: str, name: str, first: str, second: str) -> NoReturn:
    """Report a name that is registered twice.

    Args:
        what: The kind of the registrations, as `world`.
        name: The name.
        first: The owner of the one registration, as a message names it.
        second: The owner of the other.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(
        f"{what} {name!r} is registered twice, by {first} and by {second}; rename one of them or remove it"
    )


LONGEST_LINE = 2_000
"""Characters of the longest line that reports an error."""


def shortened(text: str, most: int = LONGEST_LINE) -> str:
    """A text of at most `most` characters: of a longer one the start and the end."""
    return text if len(text) <= most else f"{text[: most - most // 3 - 3]} … {text[-(most // 3) :]}"


class Trace2EvolveError(Exception):
    """Base of every error of this package. Its text is at most `LONGEST_LINE` characters long."""

    def __str__(self) -> str:
        return shortened(super().__str__())


class ConfigError(Trace2EvolveError):
    """Something the user wrote is wrong; nothing was run."""


class CandidateError(ConfigError):
    """A candidate is unknown or its file is broken."""


class AdapterError(ConfigError):
    """An adapter is unknown, damaged, or of another base."""


class SuiteError(ConfigError):
    """A suite is unknown or its file is broken."""


class LockError(ConfigError):
    """A suite or its benchmark differs from `suites.lock`."""


class PolicyError(ConfigError):
    """A gate policy or goal is unknown."""


class CaseError(ConfigError):
    """A synthetic case cannot be read, or its parts contradict each other."""


class GeneratorError(ConfigError):
    """A capability environment is unknown, cannot be made, or gives what none may give."""


class CassetteError(ConfigError):
    """A cassette cannot be written, trusted or played back."""


class EndpointError(ConfigError):
    """An endpoint refuses what no retry can mend: the run ends with one line."""


class ModelFolderError(ConfigError):
    """A folder with a model or an adapter cannot be served."""


class MissingExtraError(ConfigError):
    """An optional package is needed and not installed."""


class LedgerError(Trace2EvolveError):
    """The ledger cannot be written."""


class GitHubError(Trace2EvolveError):
    """GitHub refuses a request, or does not answer."""


class ResultsError(Trace2EvolveError):
    """A results file or baseline cannot be read or trusted."""


class WorldError(Trace2EvolveError):
    """A world cannot be opened, or a task does not fit it."""


class TraceError(Trace2EvolveError):
    """A trace is malformed: no score can be given for it."""


class JudgeError(Trace2EvolveError):
    """The judge gave no usable answer."""


class TrainingError(Trace2EvolveError):
    """A training cannot begin, cannot go on, or learns nothing any more."""


class LabelError(Trace2EvolveError):
    """A labeller's run cannot be trusted: its labels are refused together."""


class ParticipantError(Trace2EvolveError):
    """An agent or a user gave no message: the simulation ends, and it is theirs."""


class AgentCodeError(ParticipantError):
    """An agent's own code raised, or returned no message: the simulation ends, and the agent failed it.

    Attributes:
        frames: The frames of the traceback, as text; empty if nothing was raised.
    """

    def __init__(self, message: str, frames: str = "") -> None:
        super().__init__(message)
        self.frames = frames


class ContextWindowError(ParticipantError):
    """The conversation no longer fits the model."""


class SandboxError(Trace2EvolveError):
    """Code that a model wrote cannot be run, or misbehaved."""


class SourceRefusedError(SandboxError):
    """A source breaks the rules of the sandbox: nothing of it ran."""


class GeneratedCodeError(SandboxError):
    """Generated code raised or gave no JSON; its sandbox goes on."""


class SandboxEndedError(SandboxError):
    """Generated code was stopped while it ran, and its process with it."""


class StorageError(Trace2EvolveError):
    """Evidence cannot be stored, or is not what was stored: the run ends without a verdict."""

    @classmethod
    def of(cls, error: OSError, place: object) -> Self:
        """The error of a write that failed: the place, the cause and the remedy."""
        why = error.strerror or str(error)
        return cls(f"{place}: cannot be written ({why}); make room or allow writing, then run the same again")


class BudgetError(Trace2EvolveError):
    """The run's budget is spent, or it was stopped: what is not finished is not made."""


class InfrastructureError(Trace2EvolveError):
    """A simulation was lost for a reason that says nothing about the agent."""


class RequestRefusedError(InfrastructureError):
    """An endpoint refuses one request for its content, and takes others."""


class TaskFailed(AssertionError):  # noqa: N818 - an outcome, not a fault of the program
    """The agent failed its task: raised by an item's call phase and by nothing else."""
