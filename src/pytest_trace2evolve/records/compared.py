"""Who was compared: agent, model, parameters and user of both sides, as reports show them."""

from pytest_trace2evolve._canonical import canonical_json
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.evidence import Provenance

NOT_RECORDED = "not recorded"
"""What reports say of a fact that a side's evidence does not hold."""


class Side(Record):
    """Who made the simulations of one side. None: not recorded.

    Attributes:
        agent, model, parameters: The agent's implementation, its model, and the settings of that model.
        user, user_model: The same of the user.
    """

    agent: str | None = None
    model: str | None = None
    parameters: dict[str, object] | None = None
    user: str | None = None
    user_model: str | None = None

    @property
    def text(self) -> str:
        """The side in one line."""
        return f"agent {self._agent}; user {self._user}"

    @property
    def _agent(self) -> str:
        if self.model is None and not self.parameters:
            return self.agent or NOT_RECORDED  # a script or a program has no model
        settings = [f"model {self.model or NOT_RECORDED}"]
        settings += [f"{name} {_shown(value)}" for name, value in sorted((self.parameters or {}).items())]
        settings += ["parameters not recorded"] if self.parameters is None else []
        return f"{self.agent or NOT_RECORDED}, {', '.join(settings)}"

    @property
    def _user(self) -> str:
        model = f", model {self.user_model}" if self.user_model else ""
        return f"{self.user or NOT_RECORDED}{model}"


class Compared(Record):
    """Both sides of a comparison, and which differences of their agents the candidate declares."""

    baseline: Side
    candidate: Side
    declared: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """Both sides for a report: one line if they agree, else a line each."""
        if self.baseline == self.candidate:
            return [f"both sides: {self.baseline.text}"]
        found = [f"baseline: {self.baseline.text}", f"candidate: {self.candidate.text}"]
        declared = ", ".join(self.declared)
        return [*found, f"declared by the candidate: another {declared}"] if declared else found


def side_of(origin: Provenance) -> Side:
    """The side that evidence of this origin is."""
    return Side(
        agent=origin.agent.implementation,
        model=origin.agent.model,
        parameters=origin.agent.arguments,
        user=origin.user.implementation,
        user_model=origin.user.model,
    )


def _shown(value: object) -> str:
    return value if isinstance(value, str) else canonical_json(value)
