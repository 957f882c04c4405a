"""Finds gate policies, built in or in a project's `policies/`, and the checks of other packages."""

import functools
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pytest_trace2evolve.errors import PolicyError
from pytest_trace2evolve.gate.policy import POLICIES, get_policy
from pytest_trace2evolve.gate.protocols import Check, Policy
from pytest_trace2evolve.utils.optional import CHECK_GROUP, entry_points

if TYPE_CHECKING:
    from pytest_trace2evolve.project.project import Project


def find_policy(
    name: str,
    project: "Project | None",
    extra_checks: Mapping[str, Check] | None = None,
    own_checks: Collection[str] | None = None,
) -> Policy:
    """Find a policy by its name.

    Args:
        project: The project whose own policies count too; None for built-in policies only.
        extra_checks: Checks by id, from the hook `pytest_t2e_checks`. If None, the checks of the project's
            hooks are used. They are loaded only for a policy of the project's own, because built-in policies
            use none of them.
        own_checks: Ids of the project's own checks. If None, they are loaded in the same way.
    """
    folder = None if project is None else project.policies_folder
    if extra_checks is None and project is not None and name not in POLICIES:
        extra_checks = project.extensions.checks
    if own_checks is None and project is not None and name not in POLICIES:
        own_checks = project.extensions.trace_checks
    return get_policy(name, folder, {**installed_checks(), **(extra_checks or {})}, own_checks or ())


@functools.cache
def installed_checks() -> Mapping[str, Check]:
    """The checks of installed packages, by their ids."""
    checks: dict[str, Check] = {}
    for point in entry_points(CHECK_GROUP, "check").values():
        try:
            checks[point.name] = point.load()()
        except Exception as error:
            raise PolicyError(
                f"check {point.name!r} of entry point {point.value!r} cannot be created: "
                f"{type(error).__name__}: {error}; correct or remove its package"
            ) from None
    return checks
