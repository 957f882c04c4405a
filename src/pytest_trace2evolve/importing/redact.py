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
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from pytest_trace2evolve.importing.detect import (
    ADDRESS,
    BIRTH,
    CARD,
    DOMAIN,
    EMAIL,
    IBAN,
    ID,
    ID_LIKE,
    IP,
    NAME,
    PHONE,
    PRODUCT,
    REPLACED,
    SECRET,
    TOKEN,
    Span,
    alphanumeric,
    digits_of,
    formal_spans,
    has_letters,
    is_product_key,
    kind_of_field,
    kind_of_key,
    labelled_ids,
    loose_spans,
    may_be_pair,
    national,
    pairs_in,
    plain_address,
    plain_email,
    plain_id,
)
from pytest_trace2evolve.importing.encodings import (
    PERCENT_ENCODED,
    decoded_forms,
    inner_json,
    inner_value,
    phrase_pattern,
    unquoted,
    without_escapes,
)
from pytest_trace2evolve.importing.names import (
    LETTERS,
    PARTICLES,
    ambiguous_words,
    common_words,
    folded,
    name_spans,
    word_set,
)
from pytest_trace2evolve.importing.replacements import (
    address_maker,
    laid_out,
    made_birth_date,
    made_card,
    made_iban,
    made_id,
    made_ip,
    made_phone,
    plain_ip,
)

_SHARED_MAILBOXES = word_set("info support sales contact hello help service admin office mail noreply")
_SEARCHED = frozenset((NAME, EMAIL, IP, IBAN))
"""Kinds of fields whose text is searched; the whole text of fields of other kinds is replaced."""


_PLAIN_KEY = re.compile(r"[a-z_]{1,60}")
"""Matches usual names of fields, which hold no personal data unless they hold a known name."""

CUSTOMER = "customer_said"
"""The key of a customer's text in the value that `Redactor.learn` gets."""


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
        names: Parts of names, and whether they are replaced in upper and lower case; if not, only the
            spellings in `exact_spellings` are replaced.
        exact_spellings: Spellings of names that are also common words.
        joined_names: Names without the space (`annlee`), with their parts.
        values: Ids and first parts of e-mail addresses, with their kinds.
        phrases: Values of several words, with their kinds.
        kept_ids: Ids of products and similar things, which stay.
        product_words: Words from names of products. They count as names of persons only if a field says so.
    """

    names: dict[str, bool] = field(default_factory=dict)
    exact_spellings: set[str] = field(default_factory=set)
    joined_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    phrases: dict[str, str] = field(default_factory=dict)
    kept_ids: set[str] = field(default_factory=set)
    product_words: set[str] = field(default_factory=set)


Facts = dict[str, str]
"""Replacements by label; several values of one label are numbered."""


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
        self._international: dict[str, tuple[str, str]] = {}
        self._mailboxes: dict[str, str] = {}
        self._cards: dict[str, str] = {}
        self._long_ids: dict[str, str] = {}

    # ---- learning

    def learn(self, value: Any) -> Scope:
        """Find the personal values of one conversation, a JSON value.

        A text under the key `CUSTOMER` was written by the customer.
        """
        scope = Scope()
        self._note_products(value, (), {}, scope)
        self._learn(value, (), {}, scope)
        return scope

    def _note_products(
        self, value: Any, path: tuple[str, ...], siblings: Mapping[str, Any], scope: Scope
    ) -> None:
        """Remember the ids and names of products, which stay."""
        if isinstance(value, dict):
            for key, item in value.items():
                if path and is_product_key(path[-1]) and ID_LIKE.fullmatch(key):
                    scope.kept_ids.add(plain_id(key))
                self._note_products(item, (*path, key), value, scope)
        elif isinstance(value, list):
            for item in value:
                self._note_products(item, path, siblings, scope)
        elif isinstance(value, str | int) and not isinstance(value, bool):
            text = str(value)
            if path and kind_of_field(path, siblings, text) == PRODUCT:
                if ID_LIKE.fullmatch(text):
                    scope.kept_ids.add(plain_id(text))
                scope.product_words |= {folded(word) for word in LETTERS.findall(text)}
            elif isinstance(value, str) and (inner := inner_value(text)) is not None:
                self._note_products(inner, (), {}, scope)

    def _learn(self, value: Any, path: tuple[str, ...], siblings: Mapping[str, Any], scope: Scope) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                if kind := kind_of_key(path, key):
                    self._remember(kind, key, scope)
                elif not _PLAIN_KEY.fullmatch(key):
                    self._learn_text(key, scope)
                self._learn(item, (*path, key), value, scope)
        elif isinstance(value, list):
            for item in value:
                self._learn(item, path, siblings, scope)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            text = str(value)
            kind = kind_of_field(path, siblings, text) if path else ""
            if kind and kind != PRODUCT:
                self._remember(kind, text, scope)
            self._learn_text(text, scope, by_form=path[-1:] == (CUSTOMER,))

    def _learn_text(self, text: str, scope: Scope, *, by_form: bool = False) -> None:
        inner = inner_value(text)
        if inner is not None:
            self._learn(inner, (), {}, scope)
            return
        for form in decoded_forms(text):
            for key, value in pairs_in(form):
                kind = kind_of_field((key,), {}, value)
                if may_be_pair(kind, value):
                    self._remember(kind, value, scope)
            for span in self._find(form, scope, search_known=False, by_form=by_form):
                self._remember(span.kind, form[span.start : span.end], scope)

    def _remember(self, kind: str, text: str, scope: Scope) -> None:
        """Remember a value, so that it is replaced wherever it occurs in the conversation."""
        text = text.strip()
        if not text or self._stays(text) or REPLACED.fullmatch(text):
            return
        if kind == NAME:
            self._remember_name(text, scope)
            return
        self._originals.add(alphanumeric(text))
        if kind == EMAIL:
            self._remember_mailbox(text, scope)
            return
        digits = digits_of(text)
        if len(digits) >= 7 and not has_letters(text):
            prefix, number = national(text)
            if kind == PHONE and len(prefix) > 1:
                self._international.setdefault(digits, (prefix, number))
            self._number_kinds.setdefault(self._national(text)[1], kind)
        if kind == CARD and len(digits) >= 12:
            self._cards.setdefault(digits[-4:], digits)
        elif kind == ID or kind in self.patterns.expressions:
            plain = plain_id(text)
            if len(plain) >= 4 or (len(plain) >= 2 and not plain.isdigit()):
                scope.values.setdefault(plain, kind)
                if len(plain) >= 6 and digits:
                    self._long_ids.setdefault(plain, kind)
        elif kind in (ADDRESS, BIRTH, SECRET) and len(text) >= 4:
            scope.phrases.setdefault(text, kind)

    def _remember_mailbox(self, text: str, scope: Scope) -> None:
        whole = plain_email(text)
        local = whole.partition("@")[0]
        if len(local) > 2 and local not in _SHARED_MAILBOXES:
            scope.values.setdefault(local, EMAIL)
            self._originals.add(alphanumeric(local))
            if "@" in whole:
                self._mailboxes.setdefault(local, whole)

    def _remember_name(self, text: str, scope: Scope) -> None:
        parts = [part for part in LETTERS.findall(text) if _is_name_part(part) and not self._stays(part)]
        for part in parts:
            key = folded(part)
            self._originals.add(key)
            if not _is_cased(part):
                scope.phrases.setdefault(part, NAME)
            elif len(part) < 3 or key in common_words() or key in ambiguous_words():
                scope.exact_spellings |= {part, part.capitalize(), part.upper()} - {part.lower()}
                scope.names.setdefault(key, False)
            else:
                scope.names[key] = True
        if len(parts) == 2 and all(map(_is_cased, parts)):
            first, last = (folded(part) for part in parts)
            pairs = ((first + last, (first, last)), (last + first, (last, first)), (first[0] + last, (last,)))
            for joined, parts_of_name in pairs:
                if len(joined) >= 6 and joined not in common_words():
                    scope.joined_names.setdefault(joined, parts_of_name)

    def _stays(self, text: str) -> bool:
        return text.casefold() in self.patterns.keep

    # ---- replacing

    def redact(self, value: Any, scope: Scope, facts: Facts | None = None) -> Any:
        """Return a JSON value with personal data replaced.

        Args:
            value: The value, which `learn` has seen.
            scope: The result of `learn` for the conversation.
            facts: Receives the replacements made in this value.
        """
        return self._redact(value, (), {}, scope, facts)

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
                self._redact_key(key, path, scope): self._redact(item, (*path, key), value, scope, facts)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._redact(item, path, siblings, scope, facts) for item in value]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return value
        text = str(value)
        kind = kind_of_field(path, siblings, text) if path else ""
        if kind and kind != PRODUCT and self._is_whole(kind, text, scope):
            stripped = text.strip()
            new = text.replace(stripped, self._replacement(kind, stripped, scope))
        elif isinstance(value, str):
            return self.redact_text(value, scope, facts)
        elif len(digits_of(text)) < 7 and plain_id(text) not in scope.values:
            return value
        else:
            new = self._plain(text, scope, None)
        return new if isinstance(value, str) or not new.isdigit() else int(new)

    def _redact_key(self, key: str, path: tuple[str, ...], scope: Scope) -> str:
        if kind_of_key(path, key) and not self._stays(key):
            return self._replacement(ID, key, scope)
        if _PLAIN_KEY.fullmatch(key) and key not in scope.values:
            parts = LETTERS.findall(key)
            if not any(self._is_known_name(part, scope) for part in parts) and key not in scope.phrases:
                return key
        return self.redact_text(key, scope, None)

    def _is_whole(self, kind: str, text: str, scope: Scope) -> bool:
        """Whether the whole text of a field is replaced, not only the values found in it."""
        if not text.strip() or self._stays(text) or REPLACED.fullmatch(text.strip()):
            return False
        if kind == EMAIL:
            return "@" not in text and text.strip().casefold() in scope.values
        return kind not in _SEARCHED

    def redact_text(self, text: str, scope: Scope, facts: Facts | None = None) -> str:
        """Return a text with personal data replaced, also within JSON, escapes, URLs and HTML entities."""
        inner = inner_json(text)
        if inner is not None:
            clean = self._redact(inner, (), {}, scope, facts)
            if clean == inner:
                return text
            return json.dumps(clean, ensure_ascii=False, indent=2 if "\n" in text.strip() else None)
        if "%" in text:
            text = PERCENT_ENCODED.sub(lambda match: self._redact_url(match[0], scope), text)
        for decode in (without_escapes, html.unescape):
            decoded = decode(text)
            if decoded != text and self._plain(decoded, scope, None) != decoded:
                text = decoded
        return self._plain(text, scope, facts)

    def _redact_url(self, text: str, scope: Scope) -> str:
        decoded = unquoted(text)
        clean = self._plain(decoded, scope, None)
        return text if clean == decoded else quote(clean, safe="/:?=&,;@+#")

    def _plain(self, text: str, scope: Scope, facts: Facts | None) -> str:
        pieces: list[str] = []
        position = 0
        replaced_spans: list[tuple[Span, str]] = []
        for span in self._find(text, scope):
            new = self._replacement(span.kind, text[span.start : span.end], scope)
            replaced_spans.append((span, new))
            if new[-1:].isdigit() and text[span.end : span.end + 1].isdigit():
                new += "_"
            pieces += [text[position : span.start], new]
            position = span.end
        if facts is not None:
            _add_facts(facts, replaced_spans, text)
        return "".join([*pieces, text[position:]])

    def _find(
        self, text: str, scope: Scope, *, search_known: bool = True, by_form: bool = False
    ) -> list[Span]:
        """The personal values in a text, in order and without overlaps."""
        taken = bytearray(len(text))
        spans: list[Span] = []
        for span in self._possible_spans(text, scope, search_known=search_known, by_form=by_form):
            size = span.end - span.start
            if size > 0 and not any(taken[span.start : span.end]):
                taken[span.start : span.end] = b"\1" * size
                if span.kind and not self._stays(text[span.start : span.end]):
                    spans.append(span)
        return sorted(spans, key=lambda span: span.start)

    def _possible_spans(
        self, text: str, scope: Scope, *, search_known: bool, by_form: bool
    ) -> Iterator[Span]:
        """Yield possible spans, the most certain first."""
        for phrase in self.patterns.keep:
            for match in phrase_pattern(phrase).finditer(text):
                yield Span(*match.span(), "")
        for match in REPLACED.finditer(text):
            yield Span(*match.span(), "")
        for kind, pattern in self.patterns.expressions.items():
            for match in pattern.finditer(text):
                yield Span(*match.span(), kind)
        if search_known:
            for phrase, kind in sorted(scope.phrases.items(), key=lambda item: -len(item[0])):
                for match in phrase_pattern(phrase).finditer(text):
                    yield Span(*match.span(), kind)
        yield from formal_spans(text)
        yield from labelled_ids(text, scope.kept_ids)
        if search_known:
            for match in TOKEN.finditer(text):
                plain = plain_id(match[0])
                kind = scope.values.get(plain) or scope.values.get(match[0].casefold(), "")
                kind = kind or self._long_ids.get(plain, "")
                if kind and plain not in scope.kept_ids:
                    yield Span(*match.span(), kind)
        yield from loose_spans(text, scope.kept_ids)
        for start, end in name_spans(text, by_form=by_form):
            if (
                scope.product_words
                and {folded(word) for word in LETTERS.findall(text, start, end)} <= scope.product_words
            ):
                continue
            for match in LETTERS.finditer(text, start, end):
                if _is_name_part(match[0]):
                    yield Span(*match.span(), NAME)
        if search_known and (scope.names or scope.joined_names):
            for match in LETTERS.finditer(text):
                if self._is_known_name(match[0], scope):
                    yield Span(*match.span(), NAME)

    def _is_known_name(self, word: str, scope: Scope) -> bool:
        key = folded(word)
        ignores_case = scope.names.get(key)
        return (
            bool(ignores_case)
            or (ignores_case is False and word in scope.exact_spellings)
            or key in scope.joined_names
        )

    # ---- making replacements

    def _replacement(self, kind: str, text: str, scope: Scope) -> str:
        """The replacement of a value, in the same layout as the text."""
        if text in self._issued:
            return text
        if kind in (PHONE, ID, CARD) and not has_letters(text) and len(digits_of(text)) >= 7:
            kind = self._number_kinds.get(self._national(text)[1], kind)
        make = self._makers.get(kind)
        new = self._id(text, kind) if make is None else make(text, scope)
        self._issued.add(new)
        return new

    @functools.cached_property
    def _makers(self) -> dict[str, Callable[[str, Scope], str]]:
        make_replacement = self._make_replacement
        return {
            NAME: self._name,
            EMAIL: self._email,
            PHONE: self._phone,
            CARD: self._card,
            IBAN: self._iban,
            DOMAIN: lambda text, scope: "example.com",
            IP: lambda text, scope: make_replacement(
                IP, plain_ip(text), functools.partial(made_ip, ":" in text)
            ),
            ADDRESS: lambda text, scope: make_replacement(ADDRESS, plain_address(text), address_maker(text)),
            BIRTH: lambda text, scope: make_replacement(BIRTH, text, made_birth_date),
            SECRET: lambda text, scope: make_replacement(SECRET, text, lambda number: f"secret{number}"),
        }

    def _name(self, text: str, scope: Scope) -> str:
        key = folded(text)
        parts = scope.joined_names.get(key, (key,)) if key not in scope.names else (key,)
        new = "".join(self._make_replacement(NAME, part, lambda number: f"Name{number}") for part in parts)
        return new.lower() if text.islower() else new.upper() if text.isupper() and len(text) > 1 else new

    def _email(self, text: str, scope: Scope) -> str:
        whole = plain_email(text)
        new = self._make_replacement(EMAIL, self._mailboxes.get(whole, whole), lambda number: f"user{number}")
        return f"{new}@example.com" if "@" in whole else new

    def _national(self, text: str) -> tuple[str, str]:
        """The prefix and the national number. A prefix may come from another occurrence, with a `+`."""
        return self._international.get(digits_of(text)) or national(text)

    def _phone(self, text: str, scope: Scope) -> str:
        prefix, number = self._national(text)
        return laid_out(
            text, prefix + self._make_replacement(PHONE, number, functools.partial(made_phone, len(number)))
        )

    def _card(self, text: str, scope: Scope) -> str:
        digits = digits_of(text)
        if len(digits) == 4:
            whole = self._cards.get(digits)
            if whole is None:
                return self._make_replacement(CARD, digits, lambda number: str(9000 + number)[-4:])
            return self._card(whole, scope)[-4:]
        new = self._make_replacement(CARD, digits, functools.partial(made_card, len(digits)))
        return laid_out(text, new)

    def _iban(self, text: str, scope: Scope) -> str:
        plain = re.sub(r"[\W_]", "", text).upper()
        return laid_out(
            text, self._make_replacement(IBAN, plain, functools.partial(made_iban, plain[:2], len(plain)))
        )

    def _id(self, text: str, kind: str) -> str:
        bare = text.removeprefix("#")
        new = text[: len(text) - len(bare)] + self._make_replacement(
            kind, plain_id(bare), functools.partial(made_id, bare.upper())
        )
        return new.lower() if text.islower() else new

    def _make_replacement(self, kind: str, key: str, make: Callable[[int], str]) -> str:
        """The replacement of a canonical value, made from the next free number of its form."""
        existing = self._replacements.get((kind, key))
        if existing is not None:
            return existing
        form = f"{kind} {make(0)}"
        while True:
            self._numbers[form] += 1
            new = make(self._numbers[form])
            if alphanumeric(new) not in self._originals:
                break
        self._replacements[kind, key] = new
        self.counts[kind] += 1
        return new


def _is_name_part(word: str) -> bool:
    return (len(word) >= 2 or not _is_cased(word)) and word.casefold() not in PARTICLES


def _is_cased(word: str) -> bool:
    """Whether the script of a word has upper and lower case; such scripts separate words."""
    return word.lower() != word.upper()


def _add_facts(facts: Facts, replaced_spans: list[tuple[Span, str]], text: str) -> None:
    """Add replacements by label; adjacent parts of a name are one fact."""
    merged: list[tuple[Span, str]] = []
    for span, new in replaced_spans:
        if merged and span.kind == NAME == merged[-1][0].kind:
            previous = merged[-1]
            gap = text[previous[0].end : span.start]
            if gap in (" ", "-"):
                merged[-1] = Span(previous[0].start, span.end, NAME), previous[1] + gap + new
                continue
        merged.append((span, new))
    for span, new in merged:
        label = span.label or span.kind.replace(" ", "_")
        if new in facts.values():
            continue
        number = 1
        while f"{label}{'' if number == 1 else f'_{number}'}" in facts:
            number += 1
        facts[f"{label}{'' if number == 1 else f'_{number}'}"] = new
