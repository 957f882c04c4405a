"""The labeller by rules: deterministic, offline, from the trace, the gold actions and the world.

A label says whether the trace shows a capability, not whether the lack did harm. For example, an agent that
changes an unread record lacks verification even if the guess was right. So passed traces can lack a
capability, and the contrast of failures and successes says whether the lack matters. If a trace does not
decide the question, the capability counts as present.

Text of messages is read only to revoke a label, or to find a wrong figure that the agent stated. Each of
these text rules was added after a person found a wrong label of a recorded run.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_trace2evolve.diagnose.behavior_features import (
    AgentCall,
    Behavior,
    ExpectedWrite,
    Match,
    record_of,
)
from pytest_trace2evolve.records.capability import BUILT_IN_CAPABILITIES, Label, LabelRun, Presence
from pytest_trace2evolve.records.message import MALFORMED

VARIANT = "new_item_ids"  # the argument with the requested variants of products
METHOD = "payment_method_id"  # the argument with the payment method
ADDRESS = frozenset({"address1", "address2", "city", "state", "zip", "country"})

TRIED = (Match.EXACT, Match.DIFFERING, Match.OTHER_TOOL, Match.FAILED)
"""Matches of a write whose record the agent had found."""


@dataclass(frozen=True)
class Observation:
    """The finding about one capability in a trace, with the index of a message and the reason."""

    presence: Presence
    message: int | None = None
    why: str = ""


_NOT_CALLED_FOR = Observation(Presence.NA)


def _lacking(message: int, why: str) -> Observation:
    return Observation(Presence.LACKING, message, why)


def _present(message: int, why: str) -> Observation:
    return Observation(Presence.PRESENT, message, why)


def label_by_rules(behaviors: Sequence[Behavior]) -> LabelRun:
    """Label every trace for every built-in capability, in one run because rules are deterministic."""
    labels = []
    for behavior in behaviors:
        for capability in BUILT_IN_CAPABILITIES:
            shown = RULES[capability.name](behavior)
            labels.append(
                Label(
                    trace=behavior.simulation.id,
                    capability=capability.name,
                    presence=shown.presence,
                    message=shown.message,
                    why=shown.why,
                )
            )
    return LabelRun(run=1, labels=tuple(labels))


# One rule per capability.


def precondition_verification(behavior: Behavior) -> Observation:
    """Whether each changed record was read before, in a state that allows the change."""
    if not behavior.writes:
        return _NOT_CALLED_FOR
    for call in behavior.writes:
        unread = call.record and behavior.first_read(call.record, call.message) is None
        if unread and not (behavior.creates(call) or behavior.was_shown(call.record, call.message)):
            return _lacking(call.message, f"{call.name} on {call.record}, which it had not read")
        status = "" if behavior.is_gold(call) else status_known(behavior, call)
        writing = behavior.writing(call.name)
        if status and writing is not None and writing.statuses and status not in writing.statuses:
            return _lacking(call.message, f"{call.name} on {call.record}, which it had read to be {status!r}")
    for call in behavior.unexpected_writes:
        return _lacking(call.message, f"{call.name} on {call.record}, which the task does not call for")
    return _present(behavior.writes[0].message, "every record was read before it was changed")


def status_known(behavior: Behavior, call: AgentCall) -> str:
    """The status of a call's record in the last earlier result that shows it; empty if there is none."""
    known = ""
    for earlier in behavior.calls:
        if earlier.message >= call.message:
            break
        if earlier.record == call.record and not earlier.error:
            known = _text_field(earlier.result, behavior.rules.status) or known
    return known


def structured_data_reasoning(behavior: Behavior) -> Observation:
    """Whether the agent derived the right variant, order or figure from the records."""
    shown: Observation | None = None
    for write in behavior.expected_writes:
        call = write.call
        if call is None:
            continue
        if write.match is Match.OTHER_RECORD:
            if behavior.first_read(write.record) is None:
                continue  # the agent could not choose it: see conditional_detail_retrieval
            return _lacking(call.message, f"{write.action.name} on {call.record}; {write.record} is meant")
        if VARIANT in write.action.arguments and write.match in (Match.EXACT, Match.DIFFERING):
            chosen, right = (made.arguments.get(VARIANT) for made in (call, write.action))
            items = [item for item in chosen if isinstance(item, str)] if isinstance(chosen, list) else []
            if VARIANT in write.differing:
                missed = [
                    str(item) for item in (right if isinstance(right, list) else ()) if item not in items
                ]
                if all(_offered(behavior, call, item) for item in missed):
                    continue  # the customer made a different choice
                return _lacking(call.message, f"chose {_listed(chosen)}; {_listed(right)} is right")
            if unread := [item for item in items if not behavior.was_told(item, call.message)]:
                return _lacking(call.message, f"chose {unread[0]} without having read of it")
            shown = shown or _present(call.message, "chose the right variants from what it had read")
        elif write.match in TRIED and write.record and not _named_by_customer(behavior, write.record):
            shown = shown or _present(call.message, f"found {write.record}, which the customer had not named")
    for answer in behavior.answers:
        if behavior.unread or behavior.was_told(answer.text):
            continue
        if answer.message is not None:
            shown = shown or _present(answer.message, f"worked out {answer.text}")
        elif (instead := _other_figure(behavior, answer.text)) is not None:
            return _lacking(instead[0], f"told {instead[1]}; {answer.text} follows from what it had read")
    return shown or _NOT_CALLED_FOR


def _listed(items: object) -> str:
    return ", ".join(map(str, items)) if isinstance(items, list) else str(items)


def _named_by_customer(behavior: Behavior, record: str) -> bool:
    return record.lower().lstrip("#") in behavior.customer_words


def multi_step_task_completion(behavior: Behavior) -> Observation:
    """Whether the agent tried every requested step after it began one of them."""
    theirs = [action for action in behavior.task.actions if action.requestor == "user"]
    steps = len(behavior.expected_writes) + len(behavior.answers) + len(theirs)
    begun = [
        write for write in behavior.expected_writes if write.match not in (Match.MISSING, Match.OTHER_RECORD)
    ]
    told = [answer for answer in behavior.answers if answer.message is not None]
    undone, last = behavior.undone_by_user, behavior.last_agent_message
    if steps < 2 or not (begun or told or len(undone) < len(theirs)):
        return _NOT_CALLED_FOR
    done = f"{len(begun) + len(told) + len(theirs) - len(undone)} of {steps} steps were"
    for write in behavior.expected_writes:
        missing = write.match is Match.MISSING and _is_within_reach(behavior, write)
        if missing and not _withdrawn(behavior, write):
            return _lacking(last, f"{write.action.name} on {write.record} was never tried, {done}")
    for action in undone:
        return _lacking(last, f"the customer never came to {action.name}, {done}")
    for answer in behavior.answers:
        if not told and behavior.was_told(answer.text):
            return _lacking(last, f"had read {answer.text}, and never told it")
    return _present(last, "tried all that was asked for")


def _is_within_reach(behavior: Behavior, write: ExpectedWrite) -> bool:
    """Whether the write was possible: the record was read or named, and the customer named an item."""
    if not write.record:
        return True
    if behavior.first_read(write.record) is None and not _named_by_customer(behavior, write.record):
        return False
    ids = _text_set(write.action.arguments.get("item_ids"))
    named = (item.get("name") for item in _items_read(behavior) if str(item.get("item_id")) in ids)
    names = [name for name in named if isinstance(name, str)]
    return not names or any(name.lower() in behavior.customer_words for name in names)


def tool_calling_precision(behavior: Behavior) -> Observation:
    """Whether calls that change something had the right tool and arguments."""
    for call in behavior.calls:
        if call.error and not behavior.is_gold(call) and (problem := _argument_error(behavior, call)):
            return _lacking(call.message, problem)
        if not call.error and [] in call.arguments.values() and call in behavior.writes:
            return _lacking(call.message, f"{call.name} on {call.record} without an item")
    tried = [
        (write, write.call)
        for write in behavior.expected_writes
        if write.match in TRIED and write.call is not None
    ]
    for write, call in tried:
        tool = write.action.name
        if write.match is Match.OTHER_TOOL:
            return _lacking(call.message, f"{call.name} on {write.record}; {tool} is asked for")
        wrong = write.differing - {VARIANT} - ADDRESS
        if _changed_elsewhere(behavior, write, call):
            wrong -= {"item_ids"}
        wrong = {name for name in wrong if not _customer_chose(behavior, call, name)}
        if wrong and write.match is Match.DIFFERING:
            name = min(wrong)
            given, right = (made.arguments.get(name) for made in (call, write.action))
            return _lacking(call.message, f"{tool} with {name} {given!r}; {right!r} is right")
    # A wrong variant or address counts as present here, because other capabilities cover these errors. If
    # only success gave this label, the capability would look missing wherever one of those is missing.
    if not tried:
        return _NOT_CALLED_FOR
    return _present(tried[0][1].message, "the right tools with the right arguments")


def _argument_error(behavior: Behavior, call: AgentCall) -> str:
    """The reason why a tool rejected a wrong call; empty if a record's state was the reason."""
    if call.name not in behavior.types:
        return f"called {call.name}, which is no tool"
    if MALFORMED in call.arguments:
        return f"called {call.name} with arguments that are no JSON object"
    if call not in behavior.writes:
        return ""
    statuses = {status for writing in behavior.rules.writes.values() for status in writing.statuses}
    if any(status in call.result.lower() for status in statuses):
        return ""
    return f"{call.name} was refused: {' '.join(call.result.split())[:120]}"


def _changed_elsewhere(behavior: Behavior, write: ExpectedWrite, call: AgentCall) -> bool:
    """Whether the items that a call leaves out occur in a different write of the agent."""
    mine, right = (_text_set(made.arguments.get("item_ids")) for made in (call, write.action))
    left = right - mine
    others = {text for other in behavior.writes if other is not call for text in other.texts}
    return bool(left) and left <= others


def account_address_inference(behavior: Behavior) -> Observation:
    """Whether the agent looked up an address that the customer referred to without stating it."""
    shown: Observation | None = None
    for write in behavior.expected_writes:
        line, call = write.action.arguments.get("address1"), write.call
        if not isinstance(line, str) or not line or line.lower() in behavior.customer_words:
            continue
        if write.match is Match.MISSING:
            # An address that the agent said counts as found; it was left unwritten for a different reason.
            is_said = line.lower() in behavior.words_of("assistant")
            if not is_said and behavior.reads and not _withdrawn(behavior, write):
                why = f"never wrote {line!r}, which stands in the records"
                return _lacking(behavior.last_agent_message, why)
        if call is None or write.match not in (Match.EXACT, Match.DIFFERING):
            continue
        if ADDRESS & write.differing:
            return _lacking(call.message, f"wrote {call.arguments.get('address1')!r}; {line!r} is right")
        if not behavior.was_told(line, call.message):
            return _lacking(call.message, f"wrote {line!r} without having read it")
        shown = shown or _present(call.message, f"took {line!r} from the records")
    return shown or _NOT_CALLED_FOR


def conditional_detail_retrieval(behavior: Behavior) -> Observation:
    """Whether the agent fetched the details on which an answer or a decision depends."""
    records = [record_of(action.name, action.arguments, behavior.rules) for action in behavior.unread]
    unread = [
        f"{action.name} of {record}" if record else action.name
        for action, record in zip(behavior.unread, records, strict=True)
    ]
    shown: Observation | None = None
    last = behavior.last_agent_message
    for answer in behavior.answers:
        if answer.message is None:
            if unread:
                return _lacking(last, f"never fetched {unread[0]}, and never told {answer.text}")
            continue
        if unread and not behavior.was_told(answer.text, answer.message):
            return _lacking(answer.message, f"told {answer.text} without having fetched {unread[0]}")
        shown = shown or _present(answer.message, f"fetched what {answer.text} stands in")
    if behavior.expected_writes and behavior.writes and behavior.gold_reads and not unread:
        shown = shown or _present(behavior.writes[0].message, "fetched all that the expert fetches")
    if behavior.expected_writes and not behavior.writes and unread:
        return _lacking(last, f"gave up before it had fetched {unread[0]}")
    for write in behavior.expected_writes:
        if write.match not in (Match.MISSING, Match.OTHER_RECORD) or write.record not in {*records} - {""}:
            continue
        if not _named_by_customer(behavior, write.record) and not _withdrawn(behavior, write):
            return _lacking(last, f"never fetched {write.record}, which is the one that is meant")
    return shown or _NOT_CALLED_FOR


RULES: Mapping[str, Callable[[Behavior], Observation]] = {
    rule.__name__: rule
    for rule in (
        precondition_verification,
        structured_data_reasoning,
        multi_step_task_completion,
        tool_calling_precision,
        account_address_inference,
        conditional_detail_retrieval,
    )
}
"""The rule of each built-in capability, by the capability's name."""


# Words that change a label: withdrawn requests, chosen methods, wrong figures.

_SENTENCE = re.compile(r"[^.!?\n]+")
_WITHDRAWAL = re.compile(
    r"\b((do not|don't|dont|no need to|won't|rather not|not want to|not) "
    r"(\w+ ){0,2}(change|modify|update|cancel|return|exchange|proceed|touch)"
    r"|never ?mind|skip|forget|changed my mind|by myself|on my own)\b"
)
_AMOUNT = re.compile(r"(?<![\w.#])\$?(\d[\d,]*\.\d{1,2})(?![\d%])")
_COUNT = re.compile(r"(?<![\w.#$-])(\d{1,3})(?![\w.-]|\.\d)")
_WORD = re.compile(r"[a-z][a-z-]{3,}")
_METHODS = {"gift_card": ("gift card",), "paypal": ("paypal",), "credit_card": ("credit card", "card ending")}
"""A customer's words for a kind of payment method, by the prefix of the method's id."""

_ANOTHER = ("other card", "other method", "other payment", "different card", "different payment")


def _sentences(behavior: Behavior, role: str) -> Iterator[tuple[int, str]]:
    """The sentences of one side in lower case, each with the index of its message."""
    for place, message in enumerate(behavior.trace):
        if message.role == role:
            for sentence in _SENTENCE.findall((message.content or "").lower()):
                yield place, sentence


def _withdrawn(behavior: Behavior, write: ExpectedWrite) -> bool:
    """Whether the customer withdrew a request: one sentence names the change and says not to make it."""
    writing = behavior.writing(write.action.name)
    parts = (part for part in write.action.name.split("_")[1:] if len(part) > 3)
    named = tuple(parts) if writing is None else writing.named
    return any(
        _WITHDRAWAL.search(sentence) and any(word in sentence for word in named)
        for _, sentence in _sentences(behavior, "user")
    )


def _customer_chose(behavior: Behavior, call: AgentCall, name: str) -> bool:
    """Whether the customer chose an argument of a call in an earlier message.

    A payment method counts as chosen if the customer named its kind, asked for a different method, or asked
    for the original method and the order was paid with this one. Any other value counts as chosen if the
    customer said it verbatim.
    """
    said = behavior.words_of("user", before=call.message)
    value = str(call.arguments.get(name))
    if name != METHOD:
        return len(value) > 3 and value.lower() in said
    paid = behavior.first_read(call.record, call.message)
    if "original" in said and paid is not None and f'"{METHOD}": "{value}"' in paid.result:
        return True
    kinds = [words for begin, words in _METHODS.items() if value.startswith(begin)]
    return any(word in said for words in (*kinds, _ANOTHER) for word in words)


def _offered(behavior: Behavior, call: AgentCall, item: str) -> bool:
    """Whether the agent had offered a variant to the customer before a call, by the variant's id or price."""
    prices = (read.get("price") for read in _items_read(behavior) if read.get("item_id") == item)
    price = next(prices, None)
    signs = [item] if price is None else [item, f"{price:.2f}" if isinstance(price, float) else str(price)]
    said = behavior.words_of("assistant", before=call.message)
    return any(sign.lower() in said for sign in signs)


def _other_figure(behavior: Behavior, expected: str) -> tuple[int, str] | None:
    """The message index and text of a wrong figure that the agent stated instead of the expected one.

    A wrong amount occurs in no earlier tool result or message of the customer. A wrong count occurs in a
    sentence that shares a word with the customer's question for a number. None if there is no such figure.
    """
    if "." in expected:
        return _other_amount(behavior)
    return _other_count(behavior, expected) if expected.isdecimal() else None


def _other_amount(behavior: Behavior) -> tuple[int, str] | None:
    for place, message in enumerate(behavior.trace):
        if message.role != "assistant":
            continue
        for amount in _AMOUNT.findall(message.content or ""):
            plain = amount.replace(",", "")
            spellings = {plain, amount, plain.rstrip("0").rstrip(".")}
            if not any(behavior.was_told(spelling, place) for spelling in spellings):
                return place, amount
    return None


def _other_count(behavior: Behavior, expected: str) -> tuple[int, str] | None:
    asked: set[str] = set()
    for _, sentence in _sentences(behavior, "user"):
        if "how many" in sentence or "number of" in sentence:
            asked |= set(_WORD.findall(sentence)) - {"many", "number", "have", "there"}
    for place, sentence in _sentences(behavior, "assistant"):
        counts = [count for count in _COUNT.findall(sentence) if count != expected]
        if counts and asked & set(_WORD.findall(sentence)):
            return place, counts[0]
    return None


# Records in the results of tools.


def _items_read(behavior: Behavior) -> Iterator[dict[str, Any]]:
    """Yield every object with an item's id in the results of read tools."""

    def with_item_id(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict):
            if "item_id" in value:
                yield value
            value = list(value.values())
        if isinstance(value, list):
            for child in value:
                yield from with_item_id(child)

    for call in behavior.reads:
        try:
            yield from with_item_id(json.loads(call.result))
        except (ValueError, RecursionError):
            continue


def _text_field(result: str, name: str) -> str:
    try:
        record = json.loads(result)
    except (ValueError, RecursionError):
        return ""
    found = record.get(name) if isinstance(record, dict) else None
    return found if isinstance(found, str) else ""


def _text_set(value: object) -> set[str]:
    """The entries of a list as texts; empty for any other value, because an agent may write anything."""
    return set(map(str, value)) if isinstance(value, list) else set()
