"""Makes replacements that are recognizable, and reserved for fiction or not in use."""

import functools
import ipaddress
import re
from collections.abc import Callable
from datetime import date, timedelta

from pytest_trace2evolve.importing.detect import passes_luhn


def laid_out(text: str, characters: str) -> str:
    """Replace the letters and digits of a text by `characters`, right-aligned, and keep its layout."""
    positions = [position for position, character in enumerate(text) if character.isalnum()]
    result = list(text)
    new = characters[-len(positions) :].rjust(len(positions), "0") if positions else ""
    for position, character in zip(positions, new, strict=True):
        result[position] = character
    return "".join(result)


def made_phone(length: int, number: int) -> str:
    """A telephone number not in use: with ten digits, from the American range for fiction; else from 555."""
    if length == 10:
        return f"{201 + number // 100:03d}55501{number % 100:02d}"
    return "555" + str(number).zfill(max(1, length - 3))


def made_card(length: int, number: int) -> str:
    """A card number with a valid check digit, in a range that is not issued."""
    body = "4000" + str(number).zfill(length - 5)
    return next(body + digit for digit in "0123456789" if passes_luhn(body + digit))


def made_iban(country: str, length: int, number: int) -> str:
    """An IBAN with valid check digits, and zeros in place of the bank."""
    account = str(number).zfill(length - 4)
    value = int("".join(str(int(character, 36)) for character in f"{account}{country}00"))
    return f"{country}{98 - value % 97:02d}{account}"


def plain_ip(text: str) -> str:
    return str(ipaddress.ip_address(text))


_IP_BLOCKS = ("192.0.2", "198.51.100", "203.0.113")


def made_ip(is_ipv6: bool, number: int) -> str:
    """An IP address from the blocks reserved for documentation; IPv4 continues in 240.0.0.0/4."""
    if is_ipv6:
        return str(
            ipaddress.IPv6Address(f"2001:db8::{number:x}" if number < 65536 else (0x20010DB8 << 96) + number)
        )
    block, host = divmod(number - 1, 254)
    if block < len(_IP_BLOCKS):
        return f"{_IP_BLOCKS[block]}.{host + 1}"
    return str(ipaddress.IPv4Address((240 << 24) + number))


def address_maker(text: str) -> Callable[[int], str]:
    if re.match(r"(?i)\s*(?:apt|apartment|suite|ste|unit|flat|floor|fl|#)\b", text):
        return lambda number: f"Unit {number} Example"
    if len(text.split()) <= 2 and len(text) <= 10 and re.fullmatch(r"[\w -]+", text):  # a postcode
        return functools.partial(made_id, text)
    return lambda number: f"{100 + number} Example Street"


def made_birth_date(number: int) -> str:
    return (date(1900, 1, 1) + timedelta(days=max(number, 1) - 1)).isoformat()


def made_id(text: str, number: int) -> str:
    """An id of the same form. A short prefix stays, and 9 and a number replace the digits."""
    if re.fullmatch(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", text):
        return f"00000000-0000-4000-8000-{number:012d}"
    if match := re.fullmatch(r"([A-Za-z]{0,4}[-_/ .]?)(\d+)", text):
        return f"{match[1]}9{str(number).zfill(len(match[2]) - 1)}"
    return f"X9{str(number).zfill(max(2, min(len(text), 12) - 2))}"
