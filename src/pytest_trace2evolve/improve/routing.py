"""Trains the router's probe on openings that environments generate, and measures it on held-out openings."""

from collections import Counter
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any

from pytest_trace2evolve.agents.probe import label_logprobs
from pytest_trace2evolve.agents.router import choose_adapter
from pytest_trace2evolve.cases.case import FAMILIES, PRESSURE, generate
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.gate.intervals import CONFIDENCE_LEVEL, wilson
from pytest_trace2evolve.records.adapter import NO_CAPABILITY, ConfusionMatrix
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.serving.folder import ModelFolder
from pytest_trace2evolve.serving.server import MAX_SMALL_MODEL_PARAMETERS

TRAINING_OPENINGS = 600
"""Number of openings of training content per label."""

HELD_OUT_OPENINGS = 50
"""Number of held-out openings per label."""

PENALTY = 100.0
"""Weight of the squared slopes, of standardized features, next to the squared errors of all openings."""


def make_openings(environments: Environments, count: int, content: Content) -> Iterator[tuple[str, str]]:
    """Yield labels and customers' first words, `count` of each label.

    Those of a capability come from its environment. Those of `NO_CAPABILITY` come from cases of the six
    families of pressure, which require no capability. Training content has further cases, of all families.
    """
    for name in environments.names:
        environment = environments.environment(name, EASIEST, content)
        for seed in range(count):
            messages = environment.reset(seed)
            yield name, next((turn.text for turn in messages if turn.role == "user" and turn.text), "")
    cases = list(generate(f"routing/{content.value}", count, content, tuple(PRESSURE)))
    if content is Content.TRAIN:  # whole tasks begin otherwise than an environment's scenarios
        cases += generate("routing", count // 5 * len(FAMILIES), content)
    for case in cases:
        family = case.script.family
        yield family if family in environments.names else NO_CAPABILITY, case.script.turns[0].says


def train_router(
    base: ModelFolder,
    environments: Environments,
    *,
    on_progress: Callable[[int, str, int], None] = lambda done, text, total: None,
) -> tuple[Any, ConfusionMatrix]:
    """Train a router, and compare its choices on held-out openings with their labels.

    Args:
        on_progress: Gets the number of openings that were read, an empty text, and the number of all.

    Returns:
        The probe's matrix, and the table. The order of labels is that of the table.

    Raises:
        ModelFolderError: the base cannot be loaded.
    """
    import torch

    from pytest_trace2evolve.serving.loading import LoadedModel

    model = LoadedModel(base)
    if model.device.type == "cpu" and model.parameters < MAX_SMALL_MODEL_PARAMETERS:
        torch.set_num_threads(1)
    labels = (*environments.names, NO_CAPABILITY)
    targets: list[list[int]] = [[], []]
    features: list[list[Any]] = [[], []]
    known = list(make_openings(environments, TRAINING_OPENINGS, Content.TRAIN))
    unseen = list(make_openings(environments, HELD_OUT_OPENINGS, Content.HELDOUT))
    for part, openings in enumerate((known, unseen)):
        for label, text in openings:
            tokens = model.tokenizer(text, add_special_tokens=False)["input_ids"]
            features[part].append(model.read_states(tokens))
            targets[part].append(labels.index(label))
            on_progress(sum(map(len, targets)), "", len(known) + len(unseen))
    matrix = fit(torch.stack(features[0]), torch.tensor(targets[0]), len(labels))
    own = {label: label for label in labels}
    choices = [
        choose_adapter(label_logprobs(labels, states @ matrix[:-1] + matrix[-1]), own).chosen
        for states in features[1]
    ]
    counts = Counter(zip(targets[1], map(labels.index, choices), strict=True))
    positions = range(len(labels))
    table = tuple(tuple(counts[label, choice] for choice in positions) for label in positions)
    return matrix, ConfusionMatrix(labels=labels, counts=table)


def fit(features: Any, targets: Any, label_count: int) -> Any:
    """Return the probe's matrix by ridge regression, which estimates the probability of each label.

    Args:
        features: A tensor of shape (texts, features).
        targets: The index of each text's label, shape (texts,).
        label_count: The number of labels.
    """
    import torch

    means, scales = features.mean(0), features.std(0) + 1e-3  # some features hardly vary
    inputs = ((features - means) / scales).double()
    labels = torch.nn.functional.one_hot(targets, label_count).double()
    # In the dual form, because large models have more features than there are texts.
    products = inputs @ inputs.T + PENALTY * torch.eye(len(inputs), dtype=torch.float64)
    slopes = inputs.T @ torch.linalg.solve(products, labels - labels.mean(0))
    slopes = slopes.float() / scales.unsqueeze(-1)
    return torch.cat([slopes, (labels.mean(0).float() - means @ slopes).unsqueeze(0)])


def accuracy(
    confusion: ConfusionMatrix, level: float = CONFIDENCE_LEVEL
) -> tuple[float, float, float] | None:
    """Return the share of correct choices, with its interval (Wilson, 1927); None without openings."""
    if not confusion.total:
        return None
    share = confusion.correct / confusion.total
    return share, *wilson(share, confusion.total, NormalDist().inv_cdf((1 + level) / 2))
