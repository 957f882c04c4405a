"""Variations of banking's gold traces, which this package and tau2's own evaluator both score.

Only the standard library is used, because tau2's evaluator runs in an environment of its own. Choices come
from a digest of the variation's name, so that every version of Python makes the same ones.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Call = dict[str, Any]
"""A tool call: `name`, `arguments` and `requestor`."""

Edit = Callable[[list[Call], "Choices", Sequence[Call]], list[Call]]
"""Makes the calls of a variation from the calls of a gold trace and from those of all gold traces."""


class Choices:
    """Repeatable choices."""

    def __init__(self, name: str) -> None:
        self._name, self._count = name, 0

    def below(self, limit: int) -> int:
        self._count += 1
        text = hashlib.sha256(f"{self._name}/{self._count}".encode()).hexdigest()
        return int(text, 16) % limit

    def one(self, items: Sequence[Any]) -> Any:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        left, result = list(items), []
        while left:
            result.append(left.pop(self.below(len(left))))
        return result


AGENT, USER, UNLOCK = (
    "call_discoverable_agent_tool",
    "call_discoverable_user_tool",
    "unlock_discoverable_agent_tool",
)
HIDDEN = {AGENT: "agent_tool_name", USER: "discoverable_tool_name"}
READERS = {
    "get_debit_dispute_status_7483": ["user_id"],
    "get_atm_deposit_images_8473": ["transaction_id"],
    "get_user_dispute_history_7291": ["user_id"],
    "get_pending_replacement_orders_5765": ["credit_card_account_id"],
    "get_closure_reason_history_8293": ["credit_card_account_id"],
    "get_credit_limit_increase_history_4829": ["credit_card_account_id"],
    "get_payment_history_6183": ["credit_card_account_id", "months"],
    "get_all_user_accounts_by_user_id_3847": ["user_id"],
    "get_bank_account_transactions_9173": ["account_id"],
    "get_debit_cards_by_account_id_7823": ["account_id"],
    "initial_transfer_to_human_agent_0218": [],
    "initial_transfer_to_human_agent_1822": [],
}


def call(name: str, requestor: str = "assistant", **arguments: Any) -> Call:
    return {"name": name, "arguments": arguments, "requestor": requestor}


def hidden(tool: str, arguments: Any, requestor: str = "assistant") -> Call:
    name = AGENT if requestor == "assistant" else USER
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return call(name, requestor, **{HIDDEN[name]: tool, "arguments": text})


def hidden_name(one: Call) -> str:
    """The discoverable tool that a call is for; empty if it is for none."""
    return str(one["arguments"].get(HIDDEN.get(one["name"], ""), ""))


def inner(one: Call) -> dict[str, Any] | None:
    """The arguments of the discoverable tool."""
    text = one["arguments"].get("arguments")
    if one["name"] not in HIDDEN or not isinstance(text, str):
        return None
    try:
        value = json.loads(text)
    except ValueError:  # another variation broke it
        return None
    return value if isinstance(value, dict) else None


def on_numbers(calls: list[Call], change: Callable[[Any], Any]) -> list[Call]:
    """Change every number in the arguments of all calls."""

    def changed(value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return change(value) if is_number else value

    for one in calls:
        values = inner(one)
        if values is None:
            one["arguments"] = {key: changed(value) for key, value in one["arguments"].items()}
        else:
            one["arguments"]["arguments"] = json.dumps({key: changed(value) for key, value in values.items()})
    return calls


def on_one(calls: list[Call], choices: Choices, change: Callable[[dict[str, Any]], Any]) -> list[Call]:
    """Change the arguments of one discoverable tool's call; `change` returns them, or any text."""
    positions = [index for index, one in enumerate(calls) if inner(one)]
    if positions:
        index = choices.one(positions)
        value = change(dict(inner(calls[index]) or {}))
        calls[index]["arguments"]["arguments"] = value if isinstance(value, str) else json.dumps(value)
    return calls


def insert(calls: list[Call], choices: Choices, new: Sequence[Call]) -> list[Call]:
    index = choices.below(len(calls) + 1)
    return [*calls[:index], *new, *calls[index:]]


def known_ids(calls: Sequence[Call]) -> dict[str, Any]:
    """Arguments that the trace itself uses, by name."""
    found: dict[str, Any] = {"months": 6}
    for one in calls:
        found.update(inner(one) or {})
        found.update(one["arguments"])
    return found


def extra_reads(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    ids = known_ids(calls)
    for _ in range(2):
        tool = choices.one(sorted(READERS))
        new = [hidden(tool, {name: ids.get(name, "unknown") for name in READERS[tool]})]
        if choices.below(4):
            new.insert(0, call(UNLOCK, agent_tool_name=tool))
        calls = insert(calls, choices, new)
    return calls


def repeated_read(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    reads = [one for one in calls if hidden_name(one) in READERS]
    return insert(calls, choices, copy.deepcopy([choices.one(reads)])) if reads else calls


def repeated_call(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    return [*calls, copy.deepcopy(choices.one(calls))] if calls else calls


def missing_call(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    if calls:
        calls.pop(choices.below(len(calls)))
    return calls


def missing_read(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    names = sorted({hidden_name(one) for one in calls} & READERS.keys())
    name = choices.one(names) if names else None
    return [one for one in calls if hidden_name(one) != name]


def missing_unlock(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    positions = [index for index, one in enumerate(calls) if one["name"] == UNLOCK]
    if positions:
        calls.pop(choices.one(positions))
    return calls


def other_order(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    if len(calls) > 1:
        index = choices.below(len(calls) - 1)
        calls[index], calls[index + 1] = calls[index + 1], calls[index]
    return calls


def any_order(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    unlocks = [one for one in calls if one["name"] == UNLOCK]
    return unlocks + choices.shuffled([one for one in calls if one["name"] != UNLOCK])


def as_floats(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    return on_numbers(calls, float)


def as_ints(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    return on_numbers(calls, lambda value: int(value) if float(value).is_integer() else value)


def as_text(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    return on_numbers(calls, str)


def other_spelling(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    """Numbers as text with a fraction, with an exponent, with a currency sign, or as a whole number."""
    forms = [lambda v: f"{float(v):.2f}", lambda v: f"{float(v):e}", lambda v: f"${v}", lambda v: f" {v} "]
    return on_numbers(calls, lambda value: choices.one(forms)(value))


def other_amount(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    change = choices.one([lambda v: v + 1, lambda v: v + 0.5, lambda v: -v, lambda v: 0, lambda v: None])
    return on_numbers(calls, change)


def other_json(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    """The same arguments in another order and layout."""
    for one in calls:
        if values := inner(one):
            pairs = dict(choices.shuffled(list(values.items())))
            one["arguments"]["arguments"] = json.dumps(pairs, indent=2)
    return calls


def wrong_arguments(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    def without_one(values: dict[str, Any]) -> dict[str, Any]:
        values.pop(choices.one(sorted(values)))
        return values

    changes: list[Callable[[dict[str, Any]], Any]] = [
        lambda values: {**values, "note": 1},
        lambda values: json.dumps(values)[:-1],
        without_one,
        lambda values: dict.fromkeys(values),
        lambda values: {**values, "amount": "a lot", "note": 1},
        lambda values: "[1, 2]",
        lambda values: "NaN",
    ]
    return on_one(calls, choices, choices.one(changes))


def no_text(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    """Arguments as an object instead of its JSON text, or left out."""
    positions = [index for index, one in enumerate(calls) if inner(one)]
    if positions:
        one = calls[choices.one(positions)]
        value = one["arguments"].pop("arguments")
        if choices.below(2):
            one["arguments"]["arguments"] = json.loads(value)
    return calls


def foreign_calls(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    """A call of another task, unlocked first."""
    new = copy.deepcopy(choices.one([one for one in everything if hidden_name(one)]))
    unlock = call(UNLOCK, agent_tool_name=hidden_name(new))
    return insert(calls, choices, [unlock, new] if new["name"] == AGENT else [new])


def unused_unlock(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    names = sorted({hidden_name(one) for one in everything if one["name"] == AGENT})
    return insert(calls, choices, [call(UNLOCK, agent_tool_name=choices.one(names))])


def direct_call(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    """A discoverable tool called by its own name."""
    positions = [index for index, one in enumerate(calls) if inner(one)]
    if positions:
        index = choices.one(positions)
        one = calls[index]
        calls[index] = call(hidden_name(one), one["requestor"], **(inner(one) or {}))
    return calls


def given_tool(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    """A discoverable tool of the user that is given, or used, once more or not at all."""
    gives = [one for one in everything if one["name"] == "give_discoverable_user_tool"]
    own = [one for one in calls if one["name"] in ("give_discoverable_user_tool", USER)]
    if own and choices.below(2):
        chosen = choices.one(own)
        return [one for one in calls if one is not chosen]
    return insert(calls, choices, copy.deepcopy([choices.one(gives)]))


def reports(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    """A report of an interest discrepancy that is new, or has another amount."""
    tool = "submit_interest_discrepancy_report_7294"
    own = [one for one in calls if hidden_name(one) == tool]
    for one in own:
        values = {**(inner(one) or {}), "amount_difference": 1234, "expected_apy": 9}
        one["arguments"]["arguments"] = json.dumps(values)
    if own:
        return calls
    new = copy.deepcopy(choices.one([one for one in everything if hidden_name(one) == tool]))
    return insert(calls, choices, [call(UNLOCK, agent_tool_name=tool), new])


def applications(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    """Applications for a card, with the income in another spelling."""
    own = [one for one in calls if one["name"] == "apply_for_credit_card"]
    if not own:
        own = copy.deepcopy(
            [choices.one([one for one in everything if one["name"] == "apply_for_credit_card"])]
        )
        calls = insert(calls, choices, own)
    for one in own:
        income = one["arguments"]["annual_income"]
        try:
            float(income)
        except (TypeError, ValueError):  # another variation changed it
            income = 1000
        one["arguments"]["annual_income"] = choices.one(
            [float(income), str(income), f"{income}.0", None, "much"]
        )
    return calls


def requests(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    """A request whose amount is a whole number, and is spelt in another way."""
    names = {
        "submit_credit_limit_increase_request_7392": "requested_increase_amount",
        "request_temporary_debit_card_limit_increase_8374": "new_limit",
        "approve_credit_limit_increase_5847": "new_credit_limit",
        "apply_checking_account_credit_5829": "amount",
        "apply_savings_account_credit_6831": "amount",
        "deposit_check_3847": "check_amount",
    }
    own = [one for one in calls if hidden_name(one) in names]
    if not own:
        new = copy.deepcopy(choices.one([one for one in everything if hidden_name(one) in names]))
        own = [new]
        unlock = call(UNLOCK, agent_tool_name=hidden_name(new))
        calls = insert(calls, choices, [unlock, new] if new["name"] == AGENT else [new])
    for one in own:
        values = inner(one) or {}
        name = names[hidden_name(one)]
        number = values.get(name, 100)
        number = float(number) if isinstance(number, int | float) else 100.0
        value = choices.one(
            [int(number), number, str(number), str(int(number)), number + 0.5, "much", None, True, []]
        )
        one["arguments"]["arguments"] = json.dumps({**values, name: value})
    return calls


def unchanged(calls: list[Call], choices: Choices, everything: Sequence[Call]) -> list[Call]:
    return calls


EDITS: tuple[Edit, ...] = (
    unchanged, extra_reads, repeated_read, repeated_call, missing_call, missing_read, missing_unlock,
    other_order, any_order, as_floats, as_ints, as_text, other_spelling, other_amount, other_json,
    wrong_arguments, no_text, foreign_calls, unused_unlock, direct_call, given_tool, reports, applications,
    requests,
)  # fmt: skip


def gold_calls(task: dict[str, Any]) -> list[Call]:
    actions = task["evaluation_criteria"].get("actions") or []
    return [
        {
            "name": action["name"],
            "arguments": copy.deepcopy(action["arguments"]),
            "requestor": action.get("requestor", "assistant"),
        }
        for action in actions
    ]


def variations(
    tasks: Sequence[dict[str, Any]], seeds: Sequence[int]
) -> Iterator[tuple[str, str, list[Call]]]:
    """Yield a name, a task's id and calls for each task, edit and seed."""
    everything = [one for task in tasks for one in gold_calls(task)]
    for task in tasks:
        for edit in EDITS:
            for seed in seeds:
                name = f"{task['id']}/{edit.__name__}/{seed}"
                choices = Choices(name)
                calls = edit(gold_calls(task), choices, everything)
                if edit is not unchanged and choices.below(3) == 0:
                    calls = choices.one(EDITS)(calls, choices, everything)
                yield name, task["id"], calls


def digest_of(tasks: Sequence[dict[str, Any]], seeds: Sequence[int]) -> str:
    """Digest of all variations, which shows whether expected results belong to them."""
    text = json.dumps(list(variations(tasks, seeds)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def sign_of(reward: float | None, database: int | None, matched: str) -> str:
    """The reward and whether the databases match, as one digit; a letter for an unmeasured trace.

    A digit is 1 for the reward, plus 2 for the databases, plus 4 for an odd number of matched actions.
    """
    if reward is None or database is None:
        return "n"
    return str(int(reward) + 2 * database + 4 * (matched.count("1") % 2))


def to_simulation(name: str, task_id: str, calls: Sequence[Call]) -> dict[str, Any]:
    """A recorded simulation that made these calls, in the form that both evaluators read."""
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "Hello.", "turn_idx": 0},
        {"role": "user", "content": "Hello.", "turn_idx": 1},
    ]
    for number, one in enumerate(calls):
        tool_call = {"id": str(number), **copy.deepcopy(one)}
        messages.append({"role": one["requestor"], "content": None, "tool_calls": [tool_call]})
        messages.append(
            {"role": "tool", "id": str(number), "content": "", "requestor": one["requestor"], "error": False}
        )
    return {
        "id": name,
        "task_id": task_id,
        "trial": 0,
        "termination_reason": "user_stop",
        "messages": messages,
    }
