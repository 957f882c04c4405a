"""The labeller by rules: deterministic, offline, from the trace, the gold actions and the world.

A label tells what the trace shows, not whether it did harm: an agent that changes a record unread lacks the
verification also where the guess was right. So passed traces can lack a capability, and the contrast of
failures and successes says whether that matters. Where a trace leaves it open, it is present.

What words in a trace change about a label: wishes taken back, methods that were chosen, wrong figures.

Words are read only to take a label back, or to find the figure that was told instead of the right one. Each
of these rules was added where a label on a recorded run was read by hand and found wrong.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_trace2evolve.diagnose.behavior_features import Act, Conduct, Match, Wanted, record_of
from pytest_trace2evolve.records.capability import BUILT_IN, Label, LabelRun, Presence
from pytest_trace2evolve.records.message import MALFORMED
from pytest_trace2evolve.records.task import Action

_SENTENCE = re.compile(r"[^.!?\n]+")
_NOT_ANY_MORE = re.compile(
    r"\b((do not|don't|dont|no need to|won't|rather not|not want to|not) "
    r"(\w+ ){0,2}(change|modify|update|cancel|return|exchange|proceed|touch)"
    r"|never ?mind|skip|forget|changed my mind|by myself|on my own)\b"
)
_AMOUNT = re.compile(r"(?<![\w.#])\$?(\d[\d,]*\.\d{1,2})(?![\d%])")
_COUNT = re.compile(r"(?<![\w.#$-])(\d{1,3})(?![\w.-]|\.\d)")
_WORD = re.compile(r"[a-z][a-z-]{3,}")
_METHODS = {"gift_card": ("gift card",), "paypal": ("paypal",), "credit_card": ("credit card", "card ending")}
"""How a customer names a kind of payment method, by how its id begins."""

METHOD = "payment_method_id"
"""The argument that says who pays."""

ANOTHER = ("other card", "other method", "other payment", "different card", "different payment")


def withdrawn(conduct: Conduct, one: Wanted) -> bool:
    """Whether the customer took a wish back: a sentence of theirs that names the change and says not to."""
    named = _words_of(conduct, one)
    return any(
        _NOT_ANY_MORE.search(sentence) and any(word in sentence for word in named)
        for sentence in _sentences(conduct, "user")
    )


def _words_of(conduct: Conduct, one: Wanted) -> tuple[str, ...]:
    """How words begin that name a change: as the world's rules say, else the parts of the tool's name."""
    writing = conduct.rules.writes.get(one.action.name) if conduct.rules is not None else None
    if writing is not None:
        return writing.named
    return tuple(part for part in one.action.name.split("_")[1:] if len(part) > 3)


def _sentences(conduct: Conduct, role: str) -> Iterator[str]:
    for message in conduct.trace:
        if message.role == role:
            yield from _SENTENCE.findall((message.content or "").lower())


def chose(conduct: Conduct, act: Act, name: str) -> bool:
    """Whether the customer chose an argument of a call themselves, in words before it.

    A payment method by its kind, as another one, or as the original one where the order was paid with it;
    anything else word for word.
    """
    said = " ".join((one.content or "") for one in conduct.trace[: act.message] if one.role == "user").lower()
    value = str(act.call.arguments.get(name))
    if name != METHOD:
        return len(value) > 3 and value.lower() in said
    paid = conduct.was_read(act.record, act.message)
    if "original" in said and paid is not None and f'"{METHOD}": "{value}"' in paid.result:
        return True
    kinds = [words for begin, words in _METHODS.items() if value.startswith(begin)]
    return any(word in said for words in (*kinds, ANOTHER) for word in words)


def wrote(conduct: Conduct, text: str) -> bool:
    """Whether the agent said a text to the customer."""
    return any(
        text.lower() in (one.content or "").lower() for one in conduct.trace if one.role == "assistant"
    )


def offered(conduct: Conduct, act: Act, item: str) -> bool:
    """Whether the agent had told the customer of a variant, by its id or its price, before an act."""
    price = next((one.get("price") for one in _items_wording(conduct) if one.get("item_id") == item), None)
    signs = [item] if price is None else [item, f"{price:.2f}" if isinstance(price, float) else str(price)]
    return any(
        sign in (one.content or "")
        for one in conduct.trace[: act.message]
        if one.role == "assistant"
        for sign in signs
    )


def item_names(conduct: Conduct, items: object) -> set[str]:
    """The names of items, as far as the agent has read of them."""
    wanted = set(map(str, items)) if isinstance(items, list) else set()
    named = (one.get("name") for one in _items_wording(conduct) if str(one.get("item_id")) in wanted)
    return {name for name in named if isinstance(name, str)}


def changed_elsewhere(conduct: Conduct, one: Wanted) -> bool:
    """Whether the items that an act leaves out stand in another change: they were wanted otherwise."""
    if one.act is None:
        return False
    mine, wanted = (_listed(side.arguments.get("item_ids")) for side in (one.act.call, one.action))
    left = wanted - mine
    others = {value for act in conduct.writes if act is not one.act for value in act.values}
    return bool(left) and left <= others


def _listed(value: object) -> set[str]:
    """The entries of a list as texts; an agent may write anything where a list belongs."""
    return set(map(str, value)) if isinstance(value, list) else set()


def _items_wording(conduct: Conduct) -> Iterator[dict[str, Any]]:
    """Everything with an item's id in what the tools answered."""
    for act in conduct.reads:
        try:
            yield from _with_item_id(json.loads(act.result))
        except (ValueError, RecursionError):
            continue


def _with_item_id(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "item_id" in value:
            yield value
        for one in value.values():
            yield from _with_item_id(one)
    elif isinstance(value, list):
        for one in value:
            yield from _with_item_id(one)


def other_figure(conduct: Conduct, wanted: str) -> tuple[int, str] | None:
    """The place and text of a figure that the agent worked out and told instead of the wanted one.

    Of amounts, one that stands in no record and that the customer did not name. Of counts, one in a sentence
    that shares a word with the customer's question for a number. None where there is no such figure.
    """
    if "." in wanted:
        return _other_amount(conduct)
    return _other_count(conduct, wanted) if wanted.isdecimal() else None


def _other_amount(conduct: Conduct) -> tuple[int, str] | None:
    for place, message in enumerate(conduct.trace):
        if message.role != "assistant":
            continue
        for amount in _AMOUNT.findall(message.content or ""):
            plain = amount.replace(",", "")
            spellings = {plain, amount, plain.rstrip("0").rstrip(".")}
            if not any(conduct.told(spelling, place) for spelling in spellings):
                return place, amount
    return None


def _other_count(conduct: Conduct, wanted: str) -> tuple[int, str] | None:
    asked: set[str] = set()
    for sentence in _sentences(conduct, "user"):
        if "how many" in sentence or "number of" in sentence:
            asked |= set(_WORD.findall(sentence)) - {"many", "number", "have", "there"}
    for place, message in enumerate(conduct.trace):
        if message.role != "assistant":
            continue
        for sentence in _SENTENCE.findall((message.content or "").lower()):
            counts = [one for one in _COUNT.findall(sentence) if one != wanted]
            if counts and asked & set(_WORD.findall(sentence)):
                return place, counts[0]
    return None


VARIANTS = frozenset({"new_item_ids"})
"""Arguments that say which variant of a product is wanted."""

ADDRESS = frozenset({"address1", "address2", "city", "state", "zip", "country"})
"""Arguments that say where something is sent."""

TRIED = (Match.EXACT, Match.DIFFERING, Match.OTHER_TOOL, Match.FAILED)
"""What became of a write whose record the agent had found."""


@dataclass(frozen=True)
class Seen:
    """What a trace shows of one capability, where, and why."""

    presence: Presence
    message: int | None = None
    why: str = ""


NOT_CALLED_FOR = Seen(Presence.NA)
Rule = Callable[[Conduct], Seen]


def label_by_rules(conducts: Sequence[Conduct]) -> LabelRun:
    """Label every trace for every capability of the dictionary. Rules agree with themselves: one run."""
    labels = []
    for conduct in conducts:
        for capability in BUILT_IN:
            seen = RULES[capability.name](conduct)
            labels.append(
                Label(
                    trace=conduct.simulation.id,
                    capability=capability.name,
                    presence=seen.presence,
                    message=seen.message,
                    why=seen.why,
                )
            )
    return LabelRun(run=1, labels=tuple(labels))


def _lacking(message: int, why: str) -> Seen:
    return Seen(Presence.LACKING, message, why)


def _present(message: int, why: str) -> Seen:
    return Seen(Presence.PRESENT, message, why)


def precondition_verification(conduct: Conduct) -> Seen:
    """Whether records were read, and their state allowed the change, before they were changed."""
    if not conduct.writes:
        return NOT_CALLED_FOR
    for act in conduct.writes:
        unread = act.record and conduct.was_read(act.record, act.message) is None
        if unread and not (conduct.creates(act) or conduct.was_shown(act.record, act.message)):
            return _lacking(act.message, f"{act.call.name} on {act.record}, which it had not read")
        status = "" if conduct.as_gold(act) else status_known(conduct, act)
        if status and not _allowed(conduct, act, status):
            return _lacking(
                act.message, f"{act.call.name} on {act.record}, which it had read to be {status!r}"
            )
    for act in conduct.uncalled_for:
        return _lacking(act.message, f"{act.call.name} on {act.record}, which the task does not call for")
    return _present(conduct.writes[0].message, "every record was read before it was changed")


def status_known(conduct: Conduct, act: Act) -> str:
    """The status of an act's record as the agent last read it before; empty where nothing tells."""
    if conduct.rules is None:
        return ""
    known = ""
    for earlier in conduct.acts:
        if earlier.message >= act.message:
            break
        if earlier.record == act.record and not earlier.error:
            known = _field(earlier.result, conduct.rules.status) or known
    return known


def _allowed(conduct: Conduct, act: Act, status: str) -> bool:
    writing = conduct.rules.writes.get(act.call.name) if conduct.rules is not None else None
    return writing is None or not writing.statuses or status in writing.statuses


def _field(result: str, name: str) -> str:
    try:
        record = json.loads(result)
    except (ValueError, RecursionError):
        return ""
    found = record.get(name) if isinstance(record, dict) else None
    return found if isinstance(found, str) else ""


def structured_data_reasoning(conduct: Conduct) -> Seen:
    """Whether the right variant, order or figure was drawn from the records."""
    shown: Seen | None = None
    for one in conduct.wanted:
        if one.act is None:
            continue
        if one.match is Match.OTHER_RECORD:
            if conduct.was_read(one.record) is None:
                continue  # it could not be chosen: see conditional_detail_retrieval
            return _lacking(one.act.message, f"{one.action.name} on {one.act.record}; {one.record} is meant")
        if VARIANTS & one.action.arguments.keys() and one.match in (Match.EXACT, Match.DIFFERING):
            if VARIANTS & one.differing and all(offered(conduct, one.act, item) for item in _missed(one)):
                continue  # the customer chose otherwise
            if VARIANTS & one.differing:
                return _lacking(one.act.message, f"chose {_variants(one.act)}; {_variants(one)} is right")
            if unread := [item for item in _items(one.act) if not conduct.told(item, one.act.message)]:
                return _lacking(one.act.message, f"chose {unread[0]} without having read of it")
            shown = shown or _present(one.act.message, "chose the right variants from what it had read")
        elif one.match in TRIED and one.record and one.record.lower().lstrip("#") not in conduct.heard:
            shown = shown or _present(
                one.act.message, f"found {one.record}, which the customer had not named"
            )
    for answer in conduct.answers:
        if conduct.unread or conduct.told(answer.text):
            continue
        if answer.message is not None:
            shown = shown or _present(answer.message, f"worked out {answer.text}")
        elif (instead := other_figure(conduct, answer.text)) is not None:
            return _lacking(instead[0], f"told {instead[1]}; {answer.text} follows from what it had read")
    return shown or NOT_CALLED_FOR


def _items(act: Act) -> list[str]:
    found = act.call.arguments.get("new_item_ids")
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def _missed(one: Wanted) -> list[str]:
    """The right variants that an act does not choose."""
    chosen = _items(one.act) if one.act is not None else []
    right = one.action.arguments.get("new_item_ids")
    return [str(item) for item in (right if isinstance(right, list) else ()) if item not in chosen]


def _variants(of: Act | Wanted) -> str:
    arguments = of.call.arguments if isinstance(of, Act) else of.action.arguments
    found = arguments.get("new_item_ids")
    return ", ".join(map(str, found)) if isinstance(found, list) else str(found)


def multi_step_task_completion(conduct: Conduct) -> Seen:
    """Whether everything that was asked for was tried, once something was."""
    theirs = [one for one in conduct.task.actions if one.requestor == "user"]
    steps = len(conduct.wanted) + len(conduct.answers) + len(theirs)
    begun = [one for one in conduct.wanted if one.match not in (Match.MISSING, Match.OTHER_RECORD)]
    told = [one for one in conduct.answers if one.message is not None]
    undone = conduct.undone_by_user
    if steps < 2 or not (begun or told or len(undone) < len(theirs)):
        return NOT_CALLED_FOR
    done = f"{len(begun) + len(told) + len(theirs) - len(undone)} of {steps} steps were"
    for one in conduct.wanted:
        if one.match is Match.MISSING and _within_reach(conduct, one) and not withdrawn(conduct, one):
            return _lacking(conduct.last_word, f"{one.action.name} on {one.record} was never tried, {done}")
    for action in undone:
        return _lacking(conduct.last_word, f"the customer never came to {action.name}, {done}")
    for answer in conduct.answers:
        if not told and conduct.told(answer.text):
            return _lacking(conduct.last_word, f"had read {answer.text}, and never told it")
    return _present(conduct.last_word, "tried all that was asked for")


def _within_reach(conduct: Conduct, one: Wanted) -> bool:
    """Whether a change could be made: its record was read or named by the customer, and so were its items."""
    known = conduct.was_read(one.record) is not None or one.record.lower().lstrip("#") in conduct.heard
    if not one.record or not known:
        return not one.record
    names = item_names(conduct, one.action.arguments.get("item_ids"))
    return not names or any(name.lower() in conduct.heard for name in names)


def tool_calling_precision(conduct: Conduct) -> Seen:
    """Whether calls that change something were right in tool and arguments."""
    for act in conduct.acts:
        if act.error and not conduct.as_gold(act) and (problem := _argument_error(conduct, act)):
            return _lacking(act.message, problem)
        if not act.error and [] in act.call.arguments.values() and act in conduct.writes:
            return _lacking(act.message, f"{act.call.name} on {act.record} without an item")
    tried = [one for one in conduct.wanted if one.match in TRIED and one.act is not None]
    for one in tried:
        assert one.act is not None
        if one.match is Match.OTHER_TOOL:
            return _lacking(
                one.act.message, f"{one.act.call.name} on {one.record}; {one.action.name} is asked for"
            )
        wrong = one.differing - VARIANTS - ADDRESS
        if "item_ids" in wrong and changed_elsewhere(conduct, one):
            wrong -= {"item_ids"}
        wrong -= {name for name in wrong if chose(conduct, one.act, name)}
        if wrong and one.match is Match.DIFFERING:
            name = min(wrong)
            return _lacking(
                one.act.message,
                f"{one.action.name} with {name} {one.act.call.arguments.get(name)!r}; "
                f"{one.action.arguments.get(name)!r} is right",
            )
    # Also where another variant or address was written: those are other capabilities, and a label that came
    # only with success would make this one look missing wherever they are.
    if not tried or tried[0].act is None:
        return NOT_CALLED_FOR
    return _present(tried[0].act.message, "the right tools with the right arguments")


def _argument_error(conduct: Conduct, act: Act) -> str:
    """Why a tool refused a call, where it was for the call itself; empty where a record's state was why."""
    if act.call.name not in conduct.types:
        return f"called {act.call.name}, which is no tool"
    if MALFORMED in act.call.arguments:
        return f"called {act.call.name} with arguments that are no JSON object"
    if act not in conduct.writes:
        return ""
    words = act.result.lower()
    states = (
        {status for one in conduct.rules.writes.values() for status in one.statuses} if conduct.rules else ()
    )
    if any(status in words for status in states):
        return ""
    return f"{act.call.name} was refused: {' '.join(act.result.split())[:120]}"


def account_address_inference(conduct: Conduct) -> Seen:
    """Whether an address that the customer only referred to was taken from the records."""
    shown: Seen | None = None
    for one in conduct.wanted:
        line = one.action.arguments.get("address1")
        if not isinstance(line, str) or not line or line.lower() in conduct.heard:
            continue
        if one.match is Match.MISSING and wrote(conduct, line):
            continue  # it was found, and not written for another reason
        if one.match is Match.MISSING and conduct.reads and not withdrawn(conduct, one):
            return _lacking(conduct.last_word, f"never wrote {line!r}, which stands in the records")
        if one.act is None or one.match not in (Match.EXACT, Match.DIFFERING):
            continue
        if ADDRESS & one.differing:
            return _lacking(
                one.act.message, f"wrote {one.act.call.arguments.get('address1')!r}; {line!r} is right"
            )
        if not conduct.told(line, one.act.message):
            return _lacking(one.act.message, f"wrote {line!r} without having read it")
        shown = shown or _present(one.act.message, f"took {line!r} from the records")
    return shown or NOT_CALLED_FOR


def conditional_detail_retrieval(conduct: Conduct) -> Seen:
    """Whether what an answer or a decision depends on was fetched."""
    unread = [_named(conduct, action) for action in conduct.unread]
    shown: Seen | None = None
    for answer in conduct.answers:
        if answer.message is None:
            if unread:
                return _lacking(conduct.last_word, f"never fetched {unread[0]}, and never told {answer.text}")
            continue
        if unread and not conduct.told(answer.text, answer.message):
            return _lacking(answer.message, f"told {answer.text} without having fetched {unread[0]}")
        shown = shown or _present(answer.message, f"fetched what {answer.text} stands in")
    if conduct.wanted and conduct.writes and conduct.gold_reads and not unread:
        shown = shown or _present(conduct.writes[0].message, "fetched all that the expert fetches")
    if conduct.wanted and not conduct.writes and unread:
        return _lacking(conduct.last_word, f"gave up before it had fetched {unread[0]}")
    for one in conduct.wanted:
        missed = one.match in (Match.MISSING, Match.OTHER_RECORD) and one.record in _records(conduct)
        if missed and one.record.lower().lstrip("#") not in conduct.heard and not withdrawn(conduct, one):
            return _lacking(conduct.last_word, f"never fetched {one.record}, which is the one that is meant")
    return shown or NOT_CALLED_FOR


def _records(conduct: Conduct) -> set[str]:
    """Records that the expert reads and the agent did not."""
    return {record_of(one.name, one.arguments, conduct.rules) for one in conduct.unread} - {""}


def _named(conduct: Conduct, action: Action) -> str:
    record = record_of(action.name, action.arguments, conduct.rules)
    return f"{action.name} of {record}" if record else action.name


RULES: Mapping[str, Rule] = {
    "precondition_verification": precondition_verification,
    "structured_data_reasoning": structured_data_reasoning,
    "multi_step_task_completion": multi_step_task_completion,
    "tool_calling_precision": tool_calling_precision,
    "account_address_inference": account_address_inference,
    "conditional_detail_retrieval": conditional_detail_retrieval,
}
"""By capability, how a trace is read for it."""
