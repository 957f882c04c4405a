"""Measure how much personal data `trace2evolve import` replaces, in phrasings it was not written for.

    pip install faker
    python benchmarks/redaction.py

Names, addresses and numbers are drawn by Faker in ten locales. The patterns were not changed after the first
measurement with these phrasings. Change neither the phrasings nor the seed to improve a figure.
"""

import random
import re
from collections import Counter
from collections.abc import Callable

from faker import Faker

from pytest_trace2evolve.importing.names import PARTICLES
from pytest_trace2evolve.importing.redact import CUSTOMER, Redactor

LOCALES = ("en_US", "en_GB", "de_DE", "fr_FR", "es_ES", "it_IT", "nl_NL", "pl_PL", "en_IN", "pt_BR")
COUNT = 125
SEED = 77

PHRASES = {
    "name": (
        "hey its {}, any news?", "Who changed it? Was it {}?", "{} wants to know when it ships",
        "The reservation holder is {}", "Guest name {}, two nights", "can u book it for {} pls",
        "Kind regards,\n{}", "I share the account with {}.", "We are {} and family",
        "Please tell {} that I called", "My husband {} paid for it.",
        "Dear Sir or Madam, I am writing on behalf of {}.", "signed {}", "It's in {}'s name", "Name: {}",
        "{} speaking", "I spoke to {} on Monday", "the ticket for {} is wrong",
    ),
    "email": (
        "reply to {} thanks", "is it {}?", "try {} or call", "login: {}", "Email address {} doesnt work",
        "got a mail at {}",
    ),
    "phone": (
        "call {}", "phone {}", "i changed my number to {}", "whatsapp {}", "{}, that's my work line",
        "the number ending is wrong, it should be {}",
    ),
    "address": (
        "I now live at {}", "new address: {}", "The parcel should go to {}", "{} is where I stay",
        "pick up from {}", "My place is {}, second door",
    ),
    "card": ("use {} this time", "card number is {}", "billed to {} twice", "{}"),
    "iban": ("bank details: {}", "transfer to {} please", "it's {}", "IBAN is {}"),
    "ip": ("from {} I get an error", "server {}", "ip={}", "{} was me"),
    "id": (
        "cancel {}", "any update on {}?", "case {}", "my reservation number: {}",
        "the order number is {} i think", "booking {} please", "invoice {} is wrong", "ID {}",
    ),
}  # fmt: skip


def order_id(draw: random.Random) -> str:
    """An id in one of the forms that shops use."""
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
    forms: tuple[Callable[[], str], ...] = (
        lambda: f"#W{draw.randrange(10**7):07d}",
        lambda: "".join(draw.choice(letters) for _ in range(6)),
        lambda: f"ORD-{draw.randrange(2020, 2026)}-{draw.randrange(10**5):05d}",
        lambda: f"{draw.randrange(10**7, 10**8)}",
        lambda: f"BK{draw.randrange(10**5):05d}",
        lambda: f"INV/{draw.randrange(2020, 2026)}/{draw.randrange(10**4):04d}",
        lambda: f"C-{draw.randrange(1000, 99999)}",
    )
    return draw.choice(forms)()


def value_of(kind: str, draw: random.Random, fakers: dict[str, Faker]) -> str:
    """A value of a kind."""
    faker = fakers[draw.choice(LOCALES)]
    if kind == "name":
        return f"{faker.first_name()} {faker.last_name()}"
    if kind == "email":
        return faker.email() if draw.random() < 0.3 else f"{faker.user_name()}@{faker.domain_name()}"
    if kind == "phone":
        return faker.phone_number()
    if kind == "address":
        return faker.street_address().split("\n")[0]
    if kind == "ip":
        return faker.ipv4() if draw.random() < 0.6 else faker.ipv6()
    if kind == "id":
        return order_id(draw)
    plain = faker.credit_card_number()
    if kind == "iban":
        plain = fakers[draw.choice(("de_DE", "en_GB", "fr_FR", "es_ES", "it_IT", "nl_NL", "pl_PL"))].iban()
    in_groups = " ".join(plain[place : place + 4] for place in range(0, len(plain), 4))
    return in_groups if draw.random() < 0.5 else plain


def leaks(kind: str, value: str, text: str) -> bool:
    """Whether a redacted text still holds a value, or a part of a name."""
    if kind == "name":
        parts = [part for part in value.split() if len(part) > 2 and part.casefold() not in PARTICLES]
        return any(re.search(rf"(?<![^\W_]){re.escape(part)}(?![^\W_])", text) for part in parts)
    if kind == "address":
        words = re.findall(r"\w{4,}", value)
        return value in text or (bool(words) and all(word in text for word in words))
    if kind in ("phone", "card", "iban"):
        return re.sub(r"\W", "", value)[-6:] in re.sub(r"\W", "", text)
    return value.strip("#") in text


def main() -> None:
    """Print the values replaced of each kind."""
    draw = random.Random(SEED)
    Faker.seed(SEED)
    fakers = {locale: Faker(locale) for locale in LOCALES}
    replaced: Counter[str] = Counter()
    lower = 0
    for kind, phrases in PHRASES.items():
        for _ in range(COUNT):
            value, phrase = value_of(kind, draw, fakers), draw.choice(phrases)
            for written in (value, value.lower()) if kind == "name" else (value,):
                said = {CUSTOMER: phrase.format(written)}
                redactor = Redactor()
                clean = redactor.redact(said, redactor.learn(said))[CUSTOMER]
                if leaks(kind, written, clean):
                    continue
                if written == value:
                    replaced[kind] += 1
                else:
                    lower += 1
    for kind in PHRASES:
        print(f"{kind}: {replaced[kind]} of {COUNT}")
    print(f"all: {replaced.total()} of {COUNT * len(PHRASES)}; names in lower case: {lower} of {COUNT}")


if __name__ == "__main__":
    main()
