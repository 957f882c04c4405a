"""Replaces personal data in conversations: the same value gets the same replacement within one import.

Values are found in three ways: by the name of a field (`email`, `customer_id`), by their form (an IBAN, a
card number with a valid check digit), and by the words before them ("my name is", "order number"). A name, an
id or the first part of an e-mail address that was found once is then replaced everywhere in its conversation.

Limits: no pattern finds everything. A name is missed if no field, phrase, greeting, signature, common first
name or (in a customer's message) capitalization gives it away. Also missed are numbers spelled in words,
texts inside images, base64 and other encodings than JSON escapes, URL encoding and HTML entities, and values
that are split at an arbitrary place. Cities, countries, dates (except dates of birth), prices and product ids
stay. Drafts are therefore reviewed by a person.
"""

import functools
import html
import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pytest_trace2evolve.importing import detect
from pytest_trace2evolve.importing.conversation import inner_json
from pytest_trace2evolve.importing.detect import CARD, EMAIL, ID, NAME, Span, digits_of, plain_id
from pytest_trace2evolve.importing.names import LETTERS, PARTICLES, folded, is_ordinary, name_spans, word_set
from pytest_trace2evolve.importing.replacements import LAID_OUT, RULES, laid_out, made_id

_SHARED_MAILBOXES = word_set("info support sales contact hello help service admin office mail noreply")
_SEARCHED = frozenset((NAME, EMAIL, detect.IP, detect.IBAN))
"""Kinds of fields whose text is searched; the whole text of fields of other kinds is replaced."""

CUSTOMER = "customer_said"
"""The key of a customer's text in the value that `Redactor.learn` gets."""

Facts = dict[str, str]
"""Replacements by label; several values of one label are numbered."""


@dataclass(frozen=True)
class Patterns:
    """The user's own patterns.

    Attributes:
        keep: Words that stay, in lower case.
        expressions: Regular expressions by the name of the kind that they find.
    """

    keep: frozenset[str] = frozenset()
    expressions: Mapping[str, re.Pattern[str]] = field(default_factory=dict)


@dataclass
class Scope:
    """The values found in one conversation, by their canonical form.

    Attributes:
        names: Parts of names, with the spellings that are replaced; an empty set stands for any case.
        joined_names: Names without the space (`annlee`), with their parts.
        values: Ids and first parts of e-mail addresses, with their kinds.
        phrases: Values of several words, with their kinds.
        kept_ids: Ids of products and similar things, which stay.
    """

    names: dict[str, set[str]] = field(default_factory=dict)
    joined_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    phrases: dict[str, str] = field(default_factory=dict)
    kept_ids: set[str] = field(default_factory=set)


class Redactor:
    """Replaces personal data in all conversations of one import.

    Call `learn` for every conversation before `redact` for the first, so that no replacement equals a value
    that a conversation holds.

    Attributes:
        counts: The number of different values replaced, by kind.
    """

    def __init__(self, patterns: Patterns | None = None) -> None:
        self.patterns = patterns or Patterns()
        self.counts: Counter[str] = Counter()
        self._replacements: dict[tuple[str, str], str] = {}
        self._issued: set[str] = set()
        self._numbers: Counter[str] = Counter()
        self._originals: set[str] = set()
        self._number_kinds: dict[str, str] = {}
        self._mailboxes: dict[str, str] = {}
        self._cards: dict[str, str] = {}

    # ---- learning

    def learn(self, value: Any) -> Scope:
        """Find the personal values of one conversation, a JSON value.

        A text under the key `CUSTOMER` was written by the customer.
        """
        scope = Scope()
        self._learn(value, (), {}, scope)
        return scope

    def _learn(self, value: Any, path: tuple[str, ...], siblings: Mapping[str, Any], scope: Scope) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                self._learn_text(key, scope)
                self._learn(item, (*path, key), value, scope)
        elif isinstance(value, list):
            for item in value:
                self._learn(item, path, siblings, scope)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            text = str(value)
            kind = detect.kind_of_field(path, siblings, text) if path else ""
            if kind == detect.PRODUCT:
                scope.kept_ids.add(plain_id(text))
            elif kind:
                self._remember(kind, text, scope)
            self._learn_text(text, scope, by_form=path[-1:] == (CUSTOMER,))

    def _learn_text(self, text: str, scope: Scope, *, by_form: bool = False) -> None:
        inner = inner_json(text)
        if inner is not None:
            self._learn(inner, (), {}, scope)
            return
        for form in dict.fromkeys((text, _decoded(text))):
            for kind, value in detect.pairs_in(form):
                self._remember(kind, value, scope)
            for span in self._find(form, scope, _found_names(form, by_form=by_form)):
                self._remember(span.kind, form[span.start : span.end], scope)

    def _remember(self, kind: str, text: str, scope: Scope) -> None:
        """Remember a value, so that it is replaced wherever it occurs in the conversation."""
        text = text.strip()
        if not text or self._stays(text) or detect.REPLACED.fullmatch(text):
            return
        if kind == NAME:
            self._remember_name(text, scope)
            return
        self._originals.add(detect.alphanumeric(text))
        digits = digits_of(text)
        if len(digits) >= 7 and not LETTERS.search(text):
            self._number_kinds.setdefault(digits[-9:], kind)
        if kind == EMAIL:
            whole = detect.plain_email(text)
            local = whole.partition("@")[0]
            if len(local) > 2 and local not in _SHARED_MAILBOXES:
                scope.values.setdefault(local, EMAIL)
                self._originals.add(detect.alphanumeric(local))
                self._mailboxes.setdefault(local, whole)
        elif kind == CARD and len(digits) >= 12:
            self._cards.setdefault(digits[-4:], digits)
        elif kind == ID or kind in self.patterns.expressions:
            plain = plain_id(text)
            if len(plain) >= 4 or (len(plain) >= 2 and not plain.isdigit()):
                scope.values.setdefault(plain, kind)
        elif kind in (detect.ADDRESS, detect.BIRTH, detect.SECRET) and len(text) >= 4:
            scope.phrases.setdefault(text, kind)

    def _remember_name(self, text: str, scope: Scope) -> None:
        parts = [part for part in LETTERS.findall(text) if _is_name_part(part) and not self._stays(part)]
        for part in parts:
            key = folded(part)
            self._originals.add(key)
            if not _is_cased(part):
                scope.phrases.setdefault(part, NAME)
            elif len(part) < 3 or is_ordinary(key):
                if scope.names.get(key) != set():
                    spellings = {part, part.capitalize(), part.upper()} - {part.lower()}
                    scope.names.setdefault(key, set()).update(spellings)
            else:
                scope.names[key] = set()
        if len(parts) == 2 and all(map(_is_cased, parts)):
            first, last = map(folded, parts)
            for joined, keys in ((first + last, (first, last)), (first[0] + last, (last,))):
                if len(joined) >= 6 and not is_ordinary(joined):
                    scope.joined_names.setdefault(joined, keys)

    def _stays(self, text: str) -> bool:
        return text.casefold() in self.patterns.keep

    # ---- replacing

    def redact(self, value: Any, scope: Scope) -> Any:
        """Return a JSON value, which `learn` has seen, with personal data replaced."""
        return self._redact(value, (), {}, scope, None)

    def redact_fields(self, fields: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
        """Return arguments by name with personal data replaced in the values; the names of arguments stay."""
        return {name: self._redact(item, (name,), fields, scope, None) for name, item in fields.items()}

    def _redact(
        self,
        value: Any,
        path: tuple[str, ...],
        siblings: Mapping[str, Any],
        scope: Scope,
        facts: Facts | None,
    ) -> Any:
        if isinstance(value, dict):
            return {
                self._plain(key, scope, None): self._redact(item, (*path, key), value, scope, facts)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._redact(item, path, siblings, scope, facts) for item in value]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return value
        text = str(value)
        kind = detect.kind_of_field(path, siblings, text) if path else ""
        if kind and kind != detect.PRODUCT and self._is_whole(kind, text.strip(), scope):
            new = text.replace(text.strip(), self._replacement(kind, text.strip(), scope))
        elif isinstance(value, str):
            return self.redact_text(value, scope, facts)
        elif len(digits_of(text)) < 7 and plain_id(text) not in scope.values:
            return value
        else:
            new = self._plain(text, scope, None)
        return new if isinstance(value, str) or not new.isdigit() else int(new)

    def _is_whole(self, kind: str, text: str, scope: Scope) -> bool:
        """Whether the whole text of a field is replaced, not only the values found in it."""
        if not text or self._stays(text) or detect.REPLACED.fullmatch(text):
            return False
        is_mailbox = kind == EMAIL and "@" not in text and text.casefold() in scope.values
        return is_mailbox or kind not in _SEARCHED

    def redact_text(self, text: str, scope: Scope, facts: Facts | None = None) -> str:
        """Return a text with personal data replaced, also within JSON, escapes, URLs and HTML entities.

        Args:
            text: The text.
            scope: The result of `learn` for the conversation.
            facts: Receives the replacements made.
        """
        inner = inner_json(text)
        if inner is not None:
            clean = self._redact(inner, (), {}, scope, facts)
            if clean == inner:
                return text
            return json.dumps(clean, ensure_ascii=False, indent=2 if "\n" in text.strip() else None)
        decoded = _decoded(text)
        if decoded != text and self._plain(decoded, scope, None) != decoded:
            text = decoded
        return self._plain(text, scope, facts)

    def _plain(self, text: str, scope: Scope, facts: Facts | None) -> str:
        pieces: list[str] = []
        position = 0
        replaced_spans: list[tuple[Span, str]] = []
        # A common word in lower case is a name only where its phrase says so, so that names are found again.
        names = itertools.chain(_found_names(text), _known_names(text, scope))
        for span in self._find(text, scope, names, is_known=True):
            new = self._replacement(span.kind, text[span.start : span.end], scope)
            replaced_spans.append((span, new))
            if new[-1:].isdigit() and text[span.end : span.end + 1].isdigit():
                new += "_"
            pieces += [text[position : span.start], new]
            position = span.end
        if facts is not None:
            _add_facts(facts, replaced_spans, text)
        return "".join([*pieces, text[position:]])

    def _find(self, text: str, scope: Scope, names: Iterator[Span], *, is_known: bool = False) -> list[Span]:
        """The personal values in a text, in order and without overlaps."""
        taken = bytearray(len(text))
        spans: list[Span] = []
        for span in self._possible_spans(text, scope, names, is_known=is_known):
            size = span.end - span.start
            if size > 0 and not any(taken[span.start : span.end]):
                taken[span.start : span.end] = b"\1" * size
                if span.kind and not self._stays(text[span.start : span.end]):
                    spans.append(span)
        return sorted(spans, key=lambda span: span.start)

    def _possible_spans(
        self, text: str, scope: Scope, names: Iterator[Span], *, is_known: bool
    ) -> Iterator[Span]:
        """Yield possible spans, the most certain first; values of `scope` only if they are known already."""
        stay = [(phrase_pattern(phrase), "") for phrase in self.patterns.keep]
        own = [(pattern, kind) for kind, pattern in self.patterns.expressions.items()]
        phrases = sorted(scope.phrases.items(), key=lambda item: -len(item[0])) if is_known else []
        for pattern, kind in (
            *stay,
            (detect.REPLACED, ""),
            *own,
            *((phrase_pattern(phrase), kind) for phrase, kind in phrases),
        ):
            for match in pattern.finditer(text):
                yield Span(*match.span(), kind)
        yield from detect.formal_spans(text)
        has_digit = any(map(str.isdigit, text))
        ids = [*detect.labelled_ids(text)]
        if is_known and scope.values:
            for match in detect.TOKEN.finditer(text):
                known = scope.values.get(plain_id(match[0])) or scope.values.get(match[0].casefold())
                ids += [Span(*match.span(), known)] if known else []
        ids += detect.loose_spans(text) if has_digit else ()
        yield from (span for span in ids if plain_id(text[span.start : span.end]) not in scope.kept_ids)
        yield from names

    # ---- making replacements

    def _replacement(self, kind: str, text: str, scope: Scope) -> str:
        """The replacement of a value, in the same layout as the text."""
        if text in self._issued:
            return text
        digits = digits_of(text)
        if kind in (detect.PHONE, ID, CARD) and not LETTERS.search(text) and len(digits) >= 7:
            kind = self._number_kinds.get(digits[-9:], kind)
        if kind == NAME:
            new = self._name(text, scope)
        elif kind == EMAIL:
            whole = detect.plain_email(text)
            new = self._make(EMAIL, self._mailboxes.get(whole, whole))
            new += "@example.com" if "@" in whole else ""
        elif kind in LAID_OUT:
            is_end = kind == CARD and len(digits) == 4
            new = laid_out(text, self._make(kind, self._cards.get(digits, text) if is_end else text))
        elif kind in RULES:
            new = self._make(kind, text)
        else:
            new = self._make(kind, text.removeprefix("#"))
            new = "#" * text.startswith("#") + (new.lower() if text.islower() else new)
        self._issued.add(new)
        return new

    def _name(self, text: str, scope: Scope) -> str:
        key = folded(text)
        parts = (key,) if key in scope.names else scope.joined_names.get(key, (key,))
        new = "".join(self._make(NAME, part) for part in parts)
        return new.lower() if text.islower() else new.upper() if text.isupper() and len(text) > 1 else new

    def _make(self, kind: str, text: str) -> str:
        """The replacement of the canonical form of a text, made from the next free number of its form."""
        canonical, make = RULES.get(kind, (plain_id, lambda _, number: made_id(text.upper(), number)))
        key = canonical(text)
        if (kind, key) in self._replacements:
            return self._replacements[kind, key]
        form = f"{kind} {make(key, 0)}"
        while True:
            self._numbers[form] += 1
            new: str = make(key, self._numbers[form])
            if detect.alphanumeric(new) not in self._originals or kind == detect.DOMAIN:
                break
        self._replacements[kind, key] = new
        self.counts[kind] += 1
        return new


_ESCAPE = re.compile(r"(?:\\u[0-9a-fA-F]{4})+|\\/")


def _decoded(text: str) -> str:
    """Return a text without JSON escapes, URL encoding and HTML entities."""

    def decode(match: re.Match[str]) -> str:
        return str(json.loads(f'"{match[0]}"')).encode("utf-8", "surrogatepass").decode("utf-8", "replace")

    return html.unescape(unquote(_ESCAPE.sub(decode, text)))


@functools.lru_cache(maxsize=10_000)
def phrase_pattern(phrase: str) -> re.Pattern[str]:
    """Return a pattern that matches a phrase in any case and spacing."""
    pattern = r"\s+".join(map(re.escape, unicodedata.normalize("NFC", phrase).split()))
    if _is_cased(phrase) or any(map(str.isdigit, phrase)):
        pattern = rf"(?<![^\W_]){pattern}(?![^\W_])"
    return re.compile(pattern, re.IGNORECASE)


def _found_names(text: str, *, by_form: bool = False) -> Iterator[Span]:
    """Yield the parts of the names that the words of a text identify."""
    for start, end in name_spans(text, by_form=by_form):
        for match in LETTERS.finditer(text, start, end):
            if _is_name_part(match[0]):
                yield Span(*match.span(), NAME)


def _known_names(text: str, scope: Scope) -> Iterator[Span]:
    """Yield the parts of names that were found somewhere in the conversation."""
    for match in LETTERS.finditer(text) if scope.names or scope.joined_names else ():
        key = folded(match[0])
        spellings = scope.names.get(key)
        if spellings == set() or match[0] in (spellings or ()) or key in scope.joined_names:
            yield Span(*match.span(), NAME)


def _is_name_part(word: str) -> bool:
    return (len(word) >= 2 or not _is_cased(word)) and word.casefold() not in PARTICLES


def _is_cased(word: str) -> bool:
    """Whether the script of a word has upper and lower case; such scripts separate words."""
    return word.lower() != word.upper()


def _add_facts(facts: Facts, replaced_spans: list[tuple[Span, str]], text: str) -> None:
    """Add replacements by label; adjacent parts of a name are one fact."""
    merged: list[tuple[Span, str]] = []
    for span, new in replaced_spans:
        previous, value = merged[-1] if merged else (Span(0, 0, ""), "")
        if span.kind == NAME == previous.kind and text[previous.end : span.start] in (" ", "-"):
            merged[-1] = (
                Span(previous.start, span.end, NAME),
                value + text[previous.end : span.start] + new,
            )
        else:
            merged.append((span, new))
    for span, new in merged:
        label = span.label or span.kind.replace(" ", "_")
        labels = (label if number == 1 else f"{label}_{number}" for number in range(1, len(facts) + 2))
        if new not in facts.values():
            facts[next(name for name in labels if name not in facts)] = new
