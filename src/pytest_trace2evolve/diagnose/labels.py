"""Labels traces by rules, offline and deterministically, from the trace, the gold actions and the world.

A label says whether the trace shows a capability, not whether a lack of it did harm. For example, an agent
that changes an unread record lacks verification even if the guess was right. So passed traces can lack a
capability, and the contrast of failures and successes says whether the lack matters. If a trace does not
decide the question, the capability counts as present.

Messages are searched for ids and values. Their wording is interpreted only to revoke a label, or to find a
wrong figure that the agent stated. Each rule about wording was added after a person found a wrong label of a
recorded run.
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
    target_record_id,
)
from pytest_trace2evolve.records.capability import BUILT_IN_CAPABILITIES, Label, LabelRun, Presence
from pytest_trace2evolve.records.message import MALFORMED_ARGUMENTS

VARIANT_ARGUMENT = "new_item_ids"  # the argument with the requested variants of products
METHOD_ARGUMENT = "payment_method_id"  # the argument with the payment method
ADDRESS_ARGUMENTS = frozenset({"address1", "address2", "city", "state", "zip", "country"})

FOUND_RECORD_MATCHES = (Match.EXACT, Match.DIFFERING, Match.OTHER_TOOL, Match.FAILED)
"""Outcomes of a required write for which the agent had found the right record."""


@dataclass(frozen=True)
class Observation:
    """Whether a trace shows one capability, with the index of a message as evidence and the reason."""

    presence: Presence
    message: int | None = None
    why: str = ""


_NOT_APPLICABLE = Observation(Presence.NA)


def _observe_lacking(message: int, why: str) -> Observation:
    return Observation(Presence.LACKING, message, why)


def _observe_present(message: int, why: str) -> Observation:
    return Observation(Presence.PRESENT, message, why)


def label_by_rules(behaviors: Sequence[Behavior]) -> LabelRun:
    """Label every trace for every built-in capability, in one run because rules are deterministic."""
    labels = []
    for behavior in behaviors:
        for capability in BUILT_IN_CAPABILITIES:
            observation = RULES[capability.name](behavior)
            labels.append(
                Label(
                    trace=behavior.simulation.id,
                    capability=capability.name,
                    presence=observation.presence,
                    message=observation.message,
                    why=observation.why,
                )
            )
    return LabelRun(run=1, labels=tuple(labels))


# One rule per capability.


def precondition_verification(behavior: Behavior) -> Observation:
    """Whether each changed record was read before, in a state that allows the change."""
    if not behavior.writes:
        return _NOT_APPLICABLE
    for call in behavior.writes:
        is_unread = call.record and behavior.first_read(call.record, call.message) is None
        if is_unread and not (
            behavior.creates_record(call) or behavior.was_returned(call.record, call.message)
        ):
            return _observe_lacking(call.message, f"{call.name} on {call.record}, which it had not read")
        status = "" if behavior.is_gold(call) else last_known_status(behavior, call)
        writing = behavior.write_declaration(call.name)
        if status and writing is not None and writing.statuses and status not in writing.statuses:
            return _observe_lacking(
                call.message, f"{call.name} on {call.record}, which it had read to be {status!r}"
            )
    for call in behavior.unexpected_writes:
        return _observe_lacking(
            call.message, f"{call.name} on {call.record}, which the task does not require"
        )
    return _observe_present(behavior.writes[0].message, "every record was read before it was changed")


def last_known_status(behavior: Behavior, call: AgentCall) -> str:
    """The status of a call's record in the last earlier result that shows it; empty if there is none."""
    status = ""
    for earlier_call in behavior.calls:
        if earlier_call.message >= call.message:
            break
        if earlier_call.record == call.record and not earlier_call.has_failed:
            status = _text_field(earlier_call.result, behavior.rules.status) or status
    return status


def structured_data_reasoning(behavior: Behavior) -> Observation:
    """Whether the agent derived the right variant, order or figure from the records."""
    observation: Observation | None = None
    for write in behavior.expected_writes:
        call = write.call
        if call is None:
            continue
        if write.match is Match.OTHER_RECORD:
            if behavior.first_read(write.record) is None:
                continue  # the agent could not choose it: see conditional_detail_retrieval
            return _observe_lacking(
                call.message, f"{write.action.name} on {call.record}; expected {write.record}"
            )
        if VARIANT_ARGUMENT in write.action.arguments and write.match in (Match.EXACT, Match.DIFFERING):
            chosen_items, gold_items = (
                tool_call.arguments.get(VARIANT_ARGUMENT) for tool_call in (call, write.action)
            )
            item_ids = (
                [item for item in chosen_items if isinstance(item, str)]
                if isinstance(chosen_items, list)
                else []
            )
            if VARIANT_ARGUMENT in write.differing_arguments:
                missed_items = [
                    str(item)
                    for item in (gold_items if isinstance(gold_items, list) else ())
                    if item not in item_ids
                ]
                if all(_was_offered(behavior, call, item) for item in missed_items):
                    continue  # the customer made a different choice
                return _observe_lacking(
                    call.message, f"chose {_format_items(chosen_items)}; expected {_format_items(gold_items)}"
                )
            if unread_items := [item for item in item_ids if not behavior.was_told(item, call.message)]:
                return _observe_lacking(call.message, f"chose {unread_items[0]} without having read it")
            observation = observation or _observe_present(
                call.message, "chose the right variants from the records that it read"
            )
        elif (
            write.match in FOUND_RECORD_MATCHES
            and write.record
            and not _is_named_by_customer(behavior, write.record)
        ):
            observation = observation or _observe_present(
                call.message, f"found {write.record}, which the customer had not named"
            )
    for answer in behavior.required_answers:
        if behavior.unread_actions or behavior.was_told(answer.text):
            continue
        if answer.message is not None:
            observation = observation or _observe_present(answer.message, f"worked out {answer.text}")
        elif (wrong_figure := _find_wrong_figure(behavior, answer.text)) is not None:
            return _observe_lacking(
                wrong_figure[0],
                f"said {wrong_figure[1]}; {answer.text} follows from the records that it read",
            )
    return observation or _NOT_APPLICABLE


def _format_items(items: object) -> str:
    return ", ".join(map(str, items)) if isinstance(items, list) else str(items)


def _is_named_by_customer(behavior: Behavior, record: str) -> bool:
    return record.lower().lstrip("#") in behavior.customer_text


def multi_step_task_completion(behavior: Behavior) -> Observation:
    """Whether the agent tried every requested step after it began one of them."""
    user_actions = [action for action in behavior.task.actions if action.requestor == "user"]
    step_count = len(behavior.expected_writes) + len(behavior.required_answers) + len(user_actions)
    begun_writes = [
        write for write in behavior.expected_writes if write.match not in (Match.MISSING, Match.OTHER_RECORD)
    ]
    given_answers = [answer for answer in behavior.required_answers if answer.message is not None]
    undone_actions, last_message = behavior.undone_user_actions, behavior.last_agent_message
    if step_count < 2 or not (begun_writes or given_answers or len(undone_actions) < len(user_actions)):
        return _NOT_APPLICABLE
    tried_count = len(begun_writes) + len(given_answers) + len(user_actions) - len(undone_actions)
    progress = f"{tried_count} of {step_count} steps were tried"
    for write in behavior.expected_writes:
        is_missing = write.match is Match.MISSING and _is_reachable(behavior, write)
        if is_missing and not _is_withdrawn(behavior, write):
            return _observe_lacking(
                last_message, f"{write.action.name} on {write.record} was never tried; {progress}"
            )
    for action in undone_actions:
        return _observe_lacking(last_message, f"the customer never performed {action.name}; {progress}")
    for answer in behavior.required_answers:
        if not given_answers and behavior.was_told(answer.text):
            return _observe_lacking(last_message, f"had read {answer.text}, but never said it")
    return _observe_present(last_message, "tried every requested step")


def _is_reachable(behavior: Behavior, write: ExpectedWrite) -> bool:
    """Whether the write was possible: the record was read or named, and an item to change was named."""
    if not write.record:
        return True
    if behavior.first_read(write.record) is None and not _is_named_by_customer(behavior, write.record):
        return False
    ids = _text_set(write.action.arguments.get("item_ids"))
    read_names = (item.get("name") for item in _iter_read_items(behavior) if str(item.get("item_id")) in ids)
    names = [name for name in read_names if isinstance(name, str)]
    return not names or any(name.lower() in behavior.customer_text for name in names)


def tool_calling_precision(behavior: Behavior) -> Observation:
    """Whether calls that change something had the right tool and arguments."""
    for call in behavior.calls:
        if call.has_failed and not behavior.is_gold(call) and (problem := _argument_problem(behavior, call)):
            return _observe_lacking(call.message, problem)
        if not call.has_failed and [] in call.arguments.values() and call in behavior.writes:
            return _observe_lacking(call.message, f"{call.name} on {call.record} without an item")
    tried_writes = [
        (write, write.call)
        for write in behavior.expected_writes
        if write.match in FOUND_RECORD_MATCHES and write.call is not None
    ]
    for write, call in tried_writes:
        tool = write.action.name
        if write.match is Match.OTHER_TOOL:
            return _observe_lacking(call.message, f"{call.name} on {write.record}; expected {tool}")
        wrong_arguments = write.differing_arguments - {VARIANT_ARGUMENT} - ADDRESS_ARGUMENTS
        if _are_items_in_other_write(behavior, write, call):
            wrong_arguments -= {"item_ids"}
        wrong_arguments = {name for name in wrong_arguments if not _is_customer_choice(behavior, call, name)}
        if wrong_arguments and write.match is Match.DIFFERING:
            name = min(wrong_arguments)
            value, gold_value = (tool_call.arguments.get(name) for tool_call in (call, write.action))
            return _observe_lacking(call.message, f"{tool} with {name} {value!r}; expected {gold_value!r}")
    # A wrong variant or address counts as present here, because other capabilities cover these errors. If
    # only full success counted as present, this capability would look missing whenever another one is.
    if not tried_writes:
        return _NOT_APPLICABLE
    return _observe_present(tried_writes[0][1].message, "the right tools with the right arguments")


def _argument_problem(behavior: Behavior, call: AgentCall) -> str:
    """The problem in the name or arguments of a rejected call; empty if a record's state was the reason."""
    if call.name not in behavior.tool_types:
        return f"called {call.name}, which is not a tool"
    if MALFORMED_ARGUMENTS in call.arguments:
        return f"called {call.name} with arguments that are not a JSON object"
    if call not in behavior.writes:
        return ""
    statuses = {status for writing in behavior.rules.writes.values() for status in writing.statuses}
    if any(status in call.result.lower() for status in statuses):
        return ""
    return f"{call.name} was rejected: {' '.join(call.result.split())[:120]}"


def _are_items_in_other_write(behavior: Behavior, write: ExpectedWrite, call: AgentCall) -> bool:
    """Whether the items that a call leaves out occur in a different write of the agent."""
    call_items, gold_items = (
        _text_set(tool_call.arguments.get("item_ids")) for tool_call in (call, write.action)
    )
    omitted_items = gold_items - call_items
    other_texts = {text for other in behavior.writes if other is not call for text in other.texts}
    return bool(omitted_items) and omitted_items <= other_texts


def account_address_inference(behavior: Behavior) -> Observation:
    """Whether the agent looked up an address that the customer referred to without stating it."""
    observation: Observation | None = None
    for write in behavior.expected_writes:
        street, call = write.action.arguments.get("address1"), write.call
        if not isinstance(street, str) or not street or street.lower() in behavior.customer_text:
            continue
        if write.match is Match.MISSING:
            # An address that the agent said counts as found; it was left unwritten for a different reason.
            is_said = street.lower() in behavior.lowercase_text("assistant")
            if not is_said and behavior.reads and not _is_withdrawn(behavior, write):
                why = f"never wrote {street!r}, which is in the records"
                return _observe_lacking(behavior.last_agent_message, why)
        if call is None or write.match not in (Match.EXACT, Match.DIFFERING):
            continue
        if ADDRESS_ARGUMENTS & write.differing_arguments:
            return _observe_lacking(
                call.message, f"wrote {call.arguments.get('address1')!r}; expected {street!r}"
            )
        if not behavior.was_told(street, call.message):
            return _observe_lacking(call.message, f"wrote {street!r} without having read it")
        observation = observation or _observe_present(call.message, f"took {street!r} from the records")
    return observation or _NOT_APPLICABLE


def conditional_detail_retrieval(behavior: Behavior) -> Observation:
    """Whether the agent fetched the details on which an answer or a decision depends."""
    record_ids = [
        target_record_id(action.name, action.arguments, behavior.rules) for action in behavior.unread_actions
    ]
    unread_texts = [
        f"{action.name} of {record}" if record else action.name
        for action, record in zip(behavior.unread_actions, record_ids, strict=True)
    ]
    observation: Observation | None = None
    last_message = behavior.last_agent_message
    for answer in behavior.required_answers:
        if answer.message is None:
            if unread_texts:
                return _observe_lacking(
                    last_message, f"never fetched {unread_texts[0]}, and never said {answer.text}"
                )
            continue
        if unread_texts and not behavior.was_told(answer.text, answer.message):
            return _observe_lacking(
                answer.message, f"said {answer.text} without having fetched {unread_texts[0]}"
            )
        observation = observation or _observe_present(
            answer.message, f"fetched the record with {answer.text}"
        )
    if behavior.expected_writes and behavior.writes and behavior.gold_reads and not unread_texts:
        observation = observation or _observe_present(
            behavior.writes[0].message, "fetched every record that the expert fetches"
        )
    if behavior.expected_writes and not behavior.writes and unread_texts:
        return _observe_lacking(last_message, f"gave up before it had fetched {unread_texts[0]}")
    for write in behavior.expected_writes:
        if write.match not in (Match.MISSING, Match.OTHER_RECORD) or write.record not in {*record_ids} - {""}:
            continue
        if not _is_named_by_customer(behavior, write.record) and not _is_withdrawn(behavior, write):
            return _observe_lacking(last_message, f"never fetched {write.record}, which the task requires")
    return observation or _NOT_APPLICABLE


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

_SENTENCE_PATTERN = re.compile(r"[^.!?\n]+")
_WITHDRAWAL_PATTERN = re.compile(
    r"\b((do not|don't|dont|no need to|won't|rather not|not want to|not) "
    r"(\w+ ){0,2}(change|modify|update|cancel|return|exchange|proceed|touch)"
    r"|never ?mind|skip|forget|changed my mind|by myself|on my own)\b"
)
_AMOUNT_PATTERN = re.compile(r"(?<![\w.#])\$?(\d[\d,]*\.\d{1,2})(?![\d%])")
_COUNT_PATTERN = re.compile(r"(?<![\w.#$-])(\d{1,3})(?![\w.-]|\.\d)")
_WORD_PATTERN = re.compile(r"[a-z][a-z-]{3,}")
_METHOD_WORDS = {
    "gift_card": ("gift card",),
    "paypal": ("paypal",),
    "credit_card": ("credit card", "card ending"),
}
"""A customer's words for a kind of payment method, by the prefix of the method's id."""

_OTHER_METHOD_WORDS = ("other card", "other method", "other payment", "different card", "different payment")


def _iter_sentences(behavior: Behavior, role: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of one role in lower case, each with the index of its message."""
    for index, message in enumerate(behavior.trace):
        if message.role == role:
            for sentence in _SENTENCE_PATTERN.findall((message.content or "").lower()):
                yield index, sentence


def _is_withdrawn(behavior: Behavior, write: ExpectedWrite) -> bool:
    """Whether the customer withdrew a request: one sentence names the change and says not to make it."""
    writing = behavior.write_declaration(write.action.name)
    parts = (part for part in write.action.name.split("_")[1:] if len(part) > 3)
    change_words = tuple(parts) if writing is None else writing.named
    return any(
        _WITHDRAWAL_PATTERN.search(sentence) and any(word in sentence for word in change_words)
        for _, sentence in _iter_sentences(behavior, "user")
    )


def _is_customer_choice(behavior: Behavior, call: AgentCall, name: str) -> bool:
    """Whether the customer chose an argument of a call in an earlier message.

    A payment method counts as chosen if the customer named its kind, asked for a different method, or asked
    for the original method and the order was paid with this one. Any other value counts as chosen if the
    customer said it verbatim.
    """
    customer_text = behavior.lowercase_text("user", before=call.message)
    value = str(call.arguments.get(name))
    if name != METHOD_ARGUMENT:
        return len(value) > 3 and value.lower() in customer_text
    order_read = behavior.first_read(call.record, call.message)
    if (
        "original" in customer_text
        and order_read is not None
        and f'"{METHOD_ARGUMENT}": "{value}"' in order_read.result
    ):
        return True
    kind_words = [words for prefix, words in _METHOD_WORDS.items() if value.startswith(prefix)]
    return any(word in customer_text for words in (*kind_words, _OTHER_METHOD_WORDS) for word in words)


def _was_offered(behavior: Behavior, call: AgentCall, item: str) -> bool:
    """Whether the agent had offered a variant to the customer before a call, by the variant's id or price."""
    prices = (
        item_record.get("price")
        for item_record in _iter_read_items(behavior)
        if item_record.get("item_id") == item
    )
    price = next(prices, None)
    identifiers = (
        [item] if price is None else [item, f"{price:.2f}" if isinstance(price, float) else str(price)]
    )
    agent_text = behavior.lowercase_text("assistant", before=call.message)
    return any(identifier.lower() in agent_text for identifier in identifiers)


def _find_wrong_figure(behavior: Behavior, expected_figure: str) -> tuple[int, str] | None:
    """The message index and text of a wrong figure that the agent stated instead of the expected figure.

    A wrong amount occurs in no earlier tool result or message of the customer. A wrong count occurs in a
    sentence that shares a word with the customer's question for a number. None if there is no such figure.
    """
    if "." in expected_figure:
        return _find_wrong_amount(behavior)
    return _find_wrong_count(behavior, expected_figure) if expected_figure.isdecimal() else None


def _find_wrong_amount(behavior: Behavior) -> tuple[int, str] | None:
    for index, message in enumerate(behavior.trace):
        if message.role != "assistant":
            continue
        for amount in _AMOUNT_PATTERN.findall(message.content or ""):
            plain_amount = amount.replace(",", "")
            spellings = {plain_amount, amount, plain_amount.rstrip("0").rstrip(".")}
            if not any(behavior.was_told(spelling, index) for spelling in spellings):
                return index, amount
    return None


def _find_wrong_count(behavior: Behavior, expected_count: str) -> tuple[int, str] | None:
    question_words: set[str] = set()
    for _, sentence in _iter_sentences(behavior, "user"):
        if "how many" in sentence or "number of" in sentence:
            question_words |= set(_WORD_PATTERN.findall(sentence)) - {"many", "number", "have", "there"}
    for index, sentence in _iter_sentences(behavior, "assistant"):
        counts = [count for count in _COUNT_PATTERN.findall(sentence) if count != expected_count]
        if counts and question_words & set(_WORD_PATTERN.findall(sentence)):
            return index, counts[0]
    return None


# Records in the results of tools.


def _iter_read_items(behavior: Behavior) -> Iterator[dict[str, Any]]:
    """Yield every object with an item's id in the results of read tools."""

    def iter_items(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict):
            if "item_id" in value:
                yield value
            value = list(value.values())
        if isinstance(value, list):
            for child in value:
                yield from iter_items(child)

    for call in behavior.reads:
        try:
            yield from iter_items(json.loads(call.result))
        except (ValueError, RecursionError):
            continue


def _text_field(result: str, name: str) -> str:
    try:
        record = json.loads(result)
    except (ValueError, RecursionError):
        return ""
    value = record.get(name) if isinstance(record, dict) else None
    return value if isinstance(value, str) else ""


def _text_set(value: object) -> set[str]:
    """The entries of a list as strings; empty for any other value, because an agent may pass anything."""
    return set(map(str, value)) if isinstance(value, list) else set()
