"""How far a model has moved from its base on the tokens that it drew."""

import torch


def divergence(now: torch.Tensor, base: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """KL divergence from the base: (2,), nats over all tokens of the agent's, and how many these are.

    The estimator exp(d) − d − 1 with d = log p_base − log p (Schulman 2020, "Approximating KL divergence",
    k3): never negative, without bias.

    Args:
        now, base: (rows, width), log-probabilities of the tokens under the model and under its base.
        own: (rows, width), 1 where they are the agent's own.
    """
    apart = (base - now) * own
    each = (torch.exp(apart) - apart - 1) * own
    return torch.stack([each.sum(), own.sum().to(each.dtype)])
