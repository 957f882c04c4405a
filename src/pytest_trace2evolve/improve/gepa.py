"""A proposer that lets GEPA (Agrawal et al., 2025, arXiv:2507.19457) choose what to reflect on, and how.

GEPA's state holds the candidates of the search with their measured rewards. Its selector takes a candidate of
their Pareto front, and its reflective mutation asks the model about a minibatch of conversations. It never
evaluates: the search screens and gates the instruction like any other, so only the search counts.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_trace2evolve.errors import ProposalError
from pytest_trace2evolve.improve.proposers import Draft, Request
from pytest_trace2evolve.improve.reflect import Reflector
from pytest_trace2evolve.records.completion import NO_USAGE

MINIBATCH_SIZE = 3
"""Conversations of one reflection; GEPA's default."""

_ATTEMPTS = 20
"""Minibatches that are tried. GEPA skips one without a failure, before it asks the model."""

_COMPONENT = "instruction"


class GepaProposer(Reflector):
    """Asks a model for the next instruction in GEPA's way."""

    def propose(self, request: Request) -> Draft | None:
        self.usage = NO_USAGE
        for attempt in range(_ATTEMPTS):
            evidence = _Evidence(self, request)
            proposals = _mutate(evidence, random.Random(f"{request.number} {attempt}"))
            if evidence.error is not None:
                raise evidence.error
            if proposals:
                text = proposals[0].candidate[_COMPONENT]
                if not text.strip():
                    raise ProposalError("rejected: its instruction is empty")
                names = list(evidence.candidates)
                parents = ", ".join(names[place] for place in proposals[0].parent_program_ids)
                hypothesis = f"GEPA: a reflection on {MINIBATCH_SIZE} conversations of {parents}"
                return Draft(hypothesis, text, request.parent.parameters)
        return None


class _Evidence:
    """What GEPA asks of its adapter: stored rewards and conversations, and no evaluation.

    Attributes:
        candidates: The instructions of the parent and of the measured candidates, by id.
        tasks: The discovery tasks that all of them have been measured on.
        error: Why there is no answer. GEPA would catch it, and ask again.
    """

    propose_new_texts = None

    def __init__(self, reflector: Reflector, request: Request) -> None:
        self._reflector, self._request = reflector, request
        self.error: Exception | None = None
        measured = {candidate.id: candidate.instruction for candidate, _ in request.history}
        parent, rewards = request.parent, request.rewards
        others = {name: text for name, text in measured.items() if name != parent.id and rewards.get(name)}
        self.candidates = {parent.id: parent.instruction, **others}
        self.tasks = sorted(set.intersection(*(set(rewards[name]) for name in self.candidates)))
        if len(self.tasks) < MINIBATCH_SIZE:
            self.candidates, self.tasks = {parent.id: parent.instruction}, sorted(rewards[parent.id])

    def rewards_of(self, candidate: str) -> dict[str, float]:
        rewards = self._request.rewards[candidate]
        return {task: rewards[task] for task in self.tasks}

    def complete(self, prompt: Any) -> str:
        try:
            return self._reflector.ask({"role": "user", "content": str(prompt)})
        except Exception as error:
            self.error = error
            return ""

    def evaluate(self, batch: list[str], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        """Return stored rewards and conversations; a new instruction has neither."""
        from gepa.core.adapter import EvaluationBatch

        known = {text: name for name, text in self.candidates.items()}
        name = known.get(candidate[_COMPONENT])
        scores = [0.0 if name is None else self._request.rewards[name][task] for task in batch]
        texts = {} if name is None else self._request.conversations(name)
        traces = [texts[task] for task in batch] if texts.keys() >= set(batch) else None
        return EvaluationBatch(outputs=batch, scores=scores, trajectories=traces, num_metric_calls=0)

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """Return the conversations with their rewards, which is all that a proposer may know."""
        pairs = zip(eval_batch.trajectories, eval_batch.scores, strict=True)
        records = [{"Conversation": text, "Feedback": f"reward {score:.2f} of 1"} for text, score in pairs]
        return dict.fromkeys(components_to_update, records)


def _mutate(evidence: _Evidence, rng: random.Random) -> list[Any]:
    """Run one step of GEPA's reflective mutation on the stored rewards."""
    from gepa.core.state import GEPAState, ValsetEvaluation
    from gepa.logging.experiment_tracker import ExperimentTracker
    from gepa.proposer.reflective_mutation.reflective_mutation import ReflectiveMutationProposer
    from gepa.strategies.batch_sampler import EpochShuffledBatchSampler
    from gepa.strategies.candidate_selector import ParetoCandidateSelector
    from gepa.strategies.component_selector import AllReflectionComponentSelector

    pool = [
        ({_COMPONENT: text}, ValsetEvaluation({}, evidence.rewards_of(name)))
        for name, text in evidence.candidates.items()
    ]
    state = GEPAState(*pool[0])
    state.total_num_evals, state.i, state.full_program_trace = 0, 0, [{}]
    for program, evaluation in pool[1:]:
        state.update_state_with_new_program([0], program, evaluation, None, 0)
    proposer = ReflectiveMutationProposer(
        logger=_Silent(),
        trainset=evidence.tasks,
        adapter=evidence,
        candidate_selector=ParetoCandidateSelector(rng),
        module_selector=AllReflectionComponentSelector(),
        batch_sampler=EpochShuffledBatchSampler(MINIBATCH_SIZE, rng),
        perfect_score=1.0,
        skip_perfect_score=True,
        experiment_tracker=ExperimentTracker(),
        reflection_lm=evidence.complete,
    )
    return list(proposer.propose(state))


class _Silent:
    """A logger of GEPA that discards everything."""

    def log(self, message: str) -> None:
        pass
