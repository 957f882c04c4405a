"""The capabilities and kinds of failure that are known without asking a judge.

Capabilities: those that TRACE (arXiv 2604.05336) found missing on τ², and two of Trace2Evolve's. Kinds of
failure: Trace2Evolve's taxonomy.
"""

from pytest_trace2evolve.records.capability import Capability

BUILT_IN = (
    Capability(
        name="precondition_verification",
        description=(
            "Before it changes a record the agent reads it, and sees that its state and the policy allow the "
            "change. It makes no change that is not called for."
        ),
    ),
    Capability(
        name="structured_data_reasoning",
        description=(
            "The agent draws the right conclusion from several records: the variant with the wanted options, "
            "the order that is meant, a sum or a count. It chooses from what it has read, not by guessing."
        ),
    ),
    Capability(
        name="multi_step_task_completion",
        description=(
            "The agent does all that the customer asks for: each change, and each answer that it has found. "
            "It does not stop after the first."
        ),
    ),
    Capability(
        name="tool_calling_precision",
        description=(
            "The agent calls the right tool with the right items, payment method and reason; which variant "
            "or address is right is not part of it. No call is refused for its arguments."
        ),
    ),
    Capability(
        name="account_address_inference",
        description=(
            "Where the customer refers to an address instead of telling it, the agent takes it from the "
            "account or the order in which it stands."
        ),
    ),
    Capability(
        name="conditional_detail_retrieval",
        description=(
            "The agent fetches the detail that an answer or a decision depends on, before it answers or "
            "gives up. It does not tell what it has not read."
        ),
    ),
)
"""What the labeller by rules labels."""

TAXONOMY = (
    Capability(
        name="under_inspection",
        description="A record that the expert reads was never read.",
    ),
    Capability(
        name="cross_order_ambiguity",
        description="A change was made, or tried, on another record than the one that is meant.",
    ),
    Capability(
        name="unsafe_write_path",
        description=(
            "A change broke an invariant (identity, consent, eligibility, read before write), or nobody had "
            "called for it."
        ),
    ),
    Capability(
        name="max_step_loop",
        description="A budget ended the simulation, or one call was made three times or more.",
    ),
    Capability(
        name="partial_success",
        description="A part of what was asked for was done as it should be, and the rest was not.",
    ),
    Capability(
        name="cancelled_order_tracking",
        description="The agent worked on an order that it knew, or could have known, to be cancelled.",
    ),
    Capability(
        name="account_address_inference",
        description="An address that stands in the records was not written, or another one was.",
    ),
)
"""Kinds of failure; a failed trace can be of several."""
