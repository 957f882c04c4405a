"""Plants 500 personal values of 8 kinds in conversations, and looks for them in files."""

import json
import random
import re
import unicodedata
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import yaml

COUNTS = {
    "name": 64, "email": 64, "phone": 62, "address": 62, "card": 62, "iban": 62, "id": 62, "ip": 62,
}  # fmt: skip

_STARTS = [
    "Vor", "Zel", "Mir", "Tash", "Quon", "Bre", "Ilv", "Dra", "Fen", "Yor", "Hax", "Lun", "Wex", "Oph",
    "Kri", "Jan",
]  # fmt: skip
_MIDDLES = "aeiou"
_ENDS = [
    "ndel", "vick", "strom", "fane", "zani", "lakis", "novic", "berg", "quist", "mann", "thorpe",
    "daan", "reth", "ñez", "gård", "šek",
]  # fmt: skip
_STREETS = [
    "Elm", "Oakhurst", "Birchwood", "Larkspur", "Juniper", "Foxglove", "Heron", "Willowbank",
    "Cresthaven", "Ashgrove",
]  # fmt: skip
_KINDS = ("Street", "Avenue", "Road", "Lane", "Drive")
_DOMAINS = ("gmail.com", "mailbox.org", "web.de", "corp.example.net", "yahoo.co.uk")


@dataclass(frozen=True)
class Item:
    """A planted value."""

    kind: str
    value: str


def _luhn(body: str) -> str:
    total = sum(
        value - 9 * (value > 9)
        for place, digit in enumerate(reversed(body))
        for value in [int(digit) * (2 - place % 2)]
    )
    return f"{body}{-total % 10}"


def _iban(draw: random.Random) -> str:
    account = "".join(str(draw.randrange(10)) for _ in range(18))
    check = 98 - int(f"{account}131400") % 97  # DE
    return f"DE{check:02d}{account}"


def planted(seed: int = 1) -> list[Item]:
    """500 different values of 8 kinds."""
    draw = random.Random(seed)
    used: set[str] = set()

    def word() -> str:
        while True:
            made = draw.choice(_STARTS) + draw.choice(_MIDDLES) + draw.choice(_ENDS)
            if made not in used:
                used.add(made)
                return made

    def value(kind: str) -> str:
        if kind == "name":
            return f"{word()} {word()}"
        if kind == "email":
            return f"{word()}.{draw.randrange(100, 1000)}@{draw.choice(_DOMAINS)}".encode(
                "ascii", "ignore"
            ).decode()
        if kind == "phone":
            local = (
                f"{draw.randrange(200, 999)}",
                f"{draw.randrange(200, 999)}",
                f"{draw.randrange(10_000):04d}",
            )
            forms = ("({}) {}-{}", "+1 {} {} {}", "{}-{}-{}", "{}.{}.{}", "+44 20{}{}{}")
            return draw.choice(forms).format(*local)
        if kind == "address":
            return f"{draw.randrange(10, 9999)} {word()} {draw.choice(_KINDS)}"
        if kind == "card":
            digits = _luhn("4" + "".join(str(draw.randrange(10)) for _ in range(14)))
            return (
                digits
                if draw.random() < 0.5
                else " ".join(digits[place : place + 4] for place in range(0, 16, 4))
            )
        if kind == "iban":
            plain = _iban(draw)
            return (
                plain
                if draw.random() < 0.5
                else " ".join(plain[place : place + 4] for place in range(0, 22, 4))
            )
        if kind == "ip":
            if draw.random() < 0.7:
                octets = (draw.randrange(low, 250) for low in (100, 100, 0, 100))
                return ".".join(map(str, octets))
            groups = [f"{draw.randrange(4096, 65535):x}" for _ in range(3)]
            return f"2a02:{groups[0]}:{groups[1]}::{groups[2]}"
        forms = ("#W{:07d}", "BK-{:06d}", "ORD{:08d}", "R{:05d}")
        return draw.choice(forms).format(draw.randrange(10_000, 99_999))

    found: list[Item] = []
    for kind, count in COUNTS.items():
        made: dict[str, None] = {}
        while len(made) < count:
            made.setdefault(value(kind), None)
        found += [Item(kind, text) for text in made]
    return found


_SENTENCES = {
    "name": ("Hello, my name is {}.", "This is {} speaking.", "I am calling for {}.", "Regards,\n{}"),
    "email": ("My address is {}.", "Write to {}, please.", "I use {} now."),
    "phone": ("Call me at {}.", "My number is {}.", "{} is my mobile."),
    "address": ("I live at {}.", "Send it to {}.", "My new address: {}."),
    "card": ("I paid with {}.", "The card is {}."),
    "iban": ("Refund it to {}.", "My IBAN: {}"),
    "id": ("It is about order {}.", "My booking {} is wrong."),
    "ip": ("I log in from {}.", "My address in the network is {}."),
}
_FIELDS = {
    "name": "customer_name", "email": "email", "phone": "phone", "address": "street", "card": "card_number",
    "iban": "iban", "id": "order_id", "ip": "ip_address",
}  # fmt: skip


def conversations(items: list[Item], seed: int = 2) -> list[dict[str, Any]]:
    """Conversations that hold each value in texts, arguments, results and metadata, in many encodings."""
    draw = random.Random(seed)
    by_kind = {kind: [item for item in items if item.kind == kind] for kind in COUNTS}
    return [
        _conversation(draw, [of[number] for of in by_kind.values() if number < len(of)])
        for number in range(max(COUNTS.values()))
    ]


def _conversation(draw: random.Random, items: list[Item]) -> dict[str, Any]:
    values = {item.kind: item.value for item in items}
    said = [draw.choice(_SENTENCES[kind]).format(value) for kind, value in values.items()]
    arguments: dict[str, Any] = {_FIELDS[kind]: value for kind, value in values.items()}
    local, _, domain = values["email"].partition("@")
    arguments |= {
        "email_local": local,
        "email_domain": domain,
        "note": f"{values['name'].upper()} <{values['email'].upper()}>",
    }
    if "phone" in values:
        arguments["phone_digits"] = int(re.sub(r"\D", "", values["phone"]))
    first = values["name"].split()[0]
    link = f"https://shop.test/find?mail={quote(values['email'], safe='')}&name={quote(values['name'])}"
    escaped = json.dumps({"who": values["name"], "mail": values["email"]})
    return {
        "messages": [
            {"role": "user", "content": " ".join(said)},
            _call("c1", "find_customer", arguments),
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": json.dumps({_FIELDS[kind]: value for kind, value in values.items()}),
            },
            {
                "role": "assistant",
                "content": f"Thank you, {first}! I found {link}, and {values['name'].lower()} in {escaped}.",
            },
            {
                "role": "user",
                "content": f"Yes. {values['email'].title()} is right, so are {'; '.join(values.values())}",
            },
            _call("c2", "update_customer", {"old": dict(values), "text": f"{escaped} {link}"}),
            {"role": "tool", "tool_call_id": "c2", "content": str(arguments)},
            {"role": "assistant", "content": f"Done, {values['name']}. I told {local}."},
        ],
        "metadata": {"user": values["email"], **arguments},
        "customer": values["name"],
    }


def _call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


# ---- looking for values


def found_in(folder: Path, items: list[Item]) -> list[tuple[str, str, str]]:
    """The values that any file of a folder holds in any encoding: the file's name, the kind and the part."""
    leaks = []
    for path in folder.rglob("*"):
        if path.is_file():
            forms = _forms(path)
            leaks += [
                (path.name, item.kind, part)
                for item in items
                for part in _parts(item)
                if _holds(forms, item.kind, part)
            ]
    return leaks


def _forms(path: Path) -> tuple[str, set[str], str]:
    """A file's text in many encodings, without case and accents: whole, as words, and as one run of signs."""
    raw = path.name + "\n" + path.read_bytes().decode("utf-8")
    parsed = "\n".join(_texts(yaml.safe_load(raw.partition("\n")[2]))) if path.suffix == ".yaml" else ""
    texts = []
    for text in (raw, parsed):
        unescaped = re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), text)
        texts += [
            text,
            unescaped,
            unquote(text),
            unquote(unescaped),
            unescape(text),
            re.sub(r"\\?\n\s*\\?", "", text),
        ]
    whole = _plain("\n".join(texts))
    return whole, set(re.findall(r"[^\W_]+", whole)), re.sub(r"[\W_]", "", whole)


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (str(key), *_texts(item))]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [str(value)]


def _plain(text: str) -> str:
    letters = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in letters if not unicodedata.combining(letter)).casefold()


def _parts(item: Item) -> list[str]:
    """The parts of a value that must not be found: each name, the mailbox, the street's name, the number."""
    plain = _plain(item.value)
    if item.kind == "name":
        return plain.split()
    if item.kind == "email":
        return [plain, plain.partition("@")[0], plain.partition(".")[0]]
    if item.kind == "address":
        return [plain, plain.split()[1]]
    if item.kind == "ip":
        return [plain]
    signs = re.sub(r"[\W_]", "", plain)
    return [signs[-9:] if item.kind == "phone" else signs]


def _holds(forms: tuple[str, set[str], str], kind: str, part: str) -> bool:
    whole, words, run = forms
    if part.isalpha():
        return part in words
    return part in run if kind in ("phone", "card", "iban", "id") else part in whole
