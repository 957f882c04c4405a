"""Corrections of banking's tools, which `inspect_evals` carries from before tau2 1.0.1.

tau2 1.0.1 reads all numbers in the arguments of a discoverable tool as floats and converts the amounts that
its tools store. So 33 and 33.0 leave the same database.
"""

import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

REVISION = "tau2 1.0.1"
"""The release whose tools the corrected tools equal."""

UNGRADED_TABLE = "interest_discrepancy_reports"
"""A table that tau2's database does not have, so tau2 neither stores nor compares such reports."""


def corrected(name: str, tool: Callable[..., Any]) -> Callable[..., Any]:
    """Return the tool as tau2 1.0.1 has it; a tool that needs no correction is returned unchanged."""
    if name not in _CORRECTIONS:
        return tool
    parameter, convert, problem = _CORRECTIONS[name]

    @functools.wraps(tool)
    def call(self: Any, **arguments: Any) -> Any:
        if parameter in arguments:
            try:
                arguments[parameter] = convert(arguments[parameter])
            except (TypeError, ValueError, RecursionError):
                if problem:  # otherwise the tool reports the value
                    inspect.signature(tool).bind(self, **arguments)  # raises for wrong names, as a call does
                    return f"Error: {problem.format(arguments[parameter])}"
        return tool(self, **arguments)

    return call


def _with_floats(text: str) -> str:
    return json.dumps(json.loads(text, parse_int=float))


def _to_whole(value: Any) -> int:
    number = float(value)
    if not number.is_integer():
        raise ValueError
    return int(number)


_WHOLE = "Invalid requested_increase_amount. Must be a whole number of dollars."
_CORRECTIONS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "call_discoverable_agent_tool": ("arguments", _with_floats, ""),
    "call_discoverable_user_tool": ("arguments", _with_floats, ""),
    "apply_checking_account_credit_5829": ("amount", float, "Invalid credit amount. Must be a number."),
    "apply_savings_account_credit_6831": ("amount", float, "Invalid credit amount. Must be a number."),
    "apply_for_credit_card": ("annual_income", float, "Invalid annual_income. Must be a number."),
    "submit_credit_limit_increase_request_7392": ("requested_increase_amount", _to_whole, _WHOLE),
    "request_temporary_debit_card_limit_increase_8374": (
        "new_limit",
        _to_whole,
        "new_limit must be an integer, got '{}'.",
    ),
}
"""By tool: the parameter, its conversion, and the tool's answer if the value cannot be converted."""
