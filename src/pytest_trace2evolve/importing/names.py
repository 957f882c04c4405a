"""Finds names of persons in texts: by phrases, greetings, signatures and common first names."""

import functools
import re
import unicodedata
from collections.abc import Iterator
from importlib import resources

LETTERS = re.compile(r"[^\W\d_]+")


def word_set(words: str) -> frozenset[str]:
    """Return the set of words in a text."""
    return frozenset(words.split())


PARTICLES = word_set(
    "mr mrs ms miss mx dr prof jr sr de da di du la le van von der den dos del die ter ten te das bin ibn al "
    "el and of"
)


@functools.cache
def _words(file: str) -> tuple[frozenset[str], ...]:
    text = (resources.files("pytest_trace2evolve.importing") / file).read_text(encoding="utf-8")
    return tuple(frozenset(part.casefold().split()) for part in text.split("# may be names\n"))


def common_words() -> frozenset[str]:
    """Return words that are not names, unless a phrase such as "my name is" leaves no doubt."""
    return _words("common_words.txt")[0]


def is_ordinary(word: str) -> bool:
    """Whether a word in lower case is a common word, perhaps one that is also a name, such as Mark."""
    return any(word in words for words in _words("common_words.txt"))


@functools.cache
def first_names() -> frozenset[str]:
    """Return common first names that are not ordinary words."""
    return _words("first_names.txt")[0].difference(*_words("common_words.txt"))


@functools.lru_cache(maxsize=100_000)
def folded(text: str) -> str:
    """Return a name in lower case, without accents."""
    plain = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in plain if not unicodedata.combining(letter)).casefold()


_CERTAIN = re.compile(
    r"(?i)\b(?:(?:my|his|her|their|whose|the|your|full|first|last|middle|maiden|legal|users?|user's|passenger"
    r"|guest|customer|account|cardholder|contact|given|family)\s+"
    r"(?:full |first |last |middle |maiden |sur|complete |given |family |legal )?names?"
    r"(?:\s+(?:on|for|of|under) (?:the |my |this |that )?\w{2,12})?(?:\s+(?:is|was|are)|'s|:|=|,)"
    r"|name'?s|surname is|names? (?:is|are)|named|call me|goes by|me llamo|mi nombre es|je m'?appelle"
    r"|mein name ist|ich hei(?:ß|ss)e|mi chiamo|meu nome [ée]|(?:in|under) the name(?: of)?|on behalf of"
    r"|(?:registered|addressed|issued|belongs|belonging) to|(?:speaking|spoke|speak|talk|talked|talking"
    r"|chatting) (?:to|with)|signed(?: by)?|attn:?|c/o|(?:passengers?|guests?|travell?ers?|cardholder"
    r"|recipient|customer|contact person|account holder)(?: (?:is|are|name|named)|:)"
    r"|(?:my|his|her|our) (?:wife|husband|partner|son|daughter|mother|father|mom|mum|dad|friend|colleague"
    r"|boss|brother|sister|assistant|spouse|girlfriend|boyfriend|roommate|fianc[ée]e?)"
    r"(?:,| is|'s name is| named)?"
    r"|(?<!\w)(?:mr|mrs|ms|miss|mx|dr|prof|herr|frau|se[ñn]ora?|monsieur|madame|mme)\.?)"
    r"\s+[\"'“(]?(?=[^\W\d_])"
)
"""Phrases before names, also in lower case."""

_CAPITAL = r"(?=[A-ZÀ-Þ\u0100-\u024f])"
_BEFORE = re.compile(
    r"(?i:\b(?:(?:i am|i'?m|i’m|this is|it is|it's|it’s|ich bin|soy|je suis|here is|here's|passenger|customer"
    r"|guest|client|agent|contact)[,:]?|(?:hello|hi|hey|dear|greetings|good (?:morning|afternoon|evening|day)"
    r"|hallo|hola|bonjour|ciao|liebe[r]?|thanks|thank you(?: so much| very much)?|cheers|welcome(?: back)?),?"
    rf"(?:\s+(?:there|again),?)?)\s+){_CAPITAL}"
)
_REPLY = re.compile(
    r"(?i:\b(?:sorry|great|perfect|sure|understood|apologies|of course|certainly|absolutely|okay|ok|yes|no"
    rf"|bye|goodbye|nice to meet you|got it|no problem|done|all set),\s+){_CAPITAL}"
)
_SIGNATURE = re.compile(
    r"(?i:(?:^|\n)[ \t]*(?:(?:kind|best|warm|many)?\s?(?:regards|wishes)|best|sincerely|cheers|thanks"
    r"|thank you|yours(?: truly| sincerely)?|love|greetings|br|take care|all the best)[,!.]?\s*\n\s*"
    rf"|[-–—~]\s*){_CAPITAL}"
)
_BEFORE_FULL = re.compile(rf"(?i:\b(?:for|with|by|about|and|of)\s+){_CAPITAL}")
_AFTER = ((_REPLY, re.compile(r"[ \t]{0,3}(?:[,.!?:;\n—–]|-\s|$)")), (_SIGNATURE, re.compile(r"[ .\n]*\Z")))
"""Patterns before names that count only if the second pattern follows: a pause, or the end of the message."""
_TITLED = re.compile(r"(?<!\w)((?:[A-ZÀ-Þ][\w'’-]{1,40} ){0,2}[A-ZÀ-Þ][\w'’-]{1,40}),? (?:here|speaking)\b")
_AND = re.compile(rf"\s*(?:,|&|\band\b)\s+{_CAPITAL}")
_WORD = re.compile(r"[ \t]{0,2}(?<!\w)([^\W\d_]{1,60}(?:['’-][^\W\d_]{1,60}){0,3})(\.?)")
_STOPS = word_set(
    "i i'm i’m you he she it we they the a an is are was and or but not on in at to for from with of my your "
    "his her our their this that calling writing here speaking please can could would have has am so if when "
    "because as who which order booking account email phone address"
)
_DETERMINED = re.compile(
    r"(?i)\b(?:a|an|the|my|your|our|this|that|these|those|both|new|two|three|any|some|another) $"
)
_PLACE_BEFORE = re.compile(r"\b(?:San|Los|Las|Santa|Fort|Saint|St\.?|Port|Mount|Lake) $")
_PLACE_AFTER = re.compile(
    r",? (?i:airport|hotel|street|avenue|road|university|hospital|station|beach|international)\b"
)


def name_spans(text: str, *, by_form: bool = False) -> Iterator[tuple[int, int]]:
    """Yield the start and end of names that a phrase, greeting, signature or common first name identifies.

    Args:
        text: The text.
        by_form: Whether two or three capitalized words in a row, none of them common, also count as a name.
            This suits messages of customers, because agents also capitalize the names of products.
    """
    for match in _CERTAIN.finditer(text):
        end = _name_end(text, match.end(), is_certain=True)
        yield match.end(), end
        if end > match.end() and (connector := _AND.match(text, end)):
            yield connector.end(), _name_end(text, connector.end())
    for match in _BEFORE.finditer(text):
        yield match.end(), _name_end(text, match.end())
    for before, after in _AFTER:
        for match in before.finditer(text):
            end = _name_end(text, match.end())
            if after.match(text, end):
                yield match.end(), end
    for match in _BEFORE_FULL.finditer(text):
        yield from _full_name(text, match.end())
    for match in _TITLED.finditer(text):
        yield match.start(1), _name_end(text, match.start(1))
    for match in LETTERS.finditer(text):
        start = match.start()
        is_name = match[0][0].isupper() or (by_form and len(match[0]) > 2)
        if not is_name or _PLACE_BEFORE.search(text, max(0, start - 8), start):
            continue
        if folded(match[0]) in first_names():
            yield start, max(_name_end(text, start, is_certain=True), match.end())
        elif by_form and match[0][0].isupper() and not _DETERMINED.search(text, max(0, start - 9), start):
            yield from _full_name(text, start)


def _full_name(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the span of two or three words, none of them common, that look like a first and a last name."""
    end = _name_end(text, start)
    words = text[start:end].split()
    if (
        2 <= len(words) <= 3
        and not any(folded(word) in common_words() for word in words)
        and not _PLACE_AFTER.match(text, end)
    ):
        yield start, end


def _name_end(text: str, start: int, *, is_certain: bool = False) -> int:
    """Return the end of the name that starts at `start`; `start` itself if no name starts there.

    A certain name may be written in lower case, and contain common words if it is not.
    """
    end = position = start
    count, may_be_lower = 0, is_certain
    while count < 4 and (match := _WORD.match(text, position)):
        word = re.sub(r"['’]s$", "", match[1])
        lower = word.casefold()
        is_capital = not word[0].islower()
        is_particle = lower in PARTICLES and (count > 0 or is_certain) and lower not in ("and", "of")
        if re.split(r"['’]", lower)[0] in _STOPS or not (is_capital or is_particle or may_be_lower):
            break
        if not (is_certain and is_capital) and folded(lower) in common_words() and not is_particle:
            break
        if not is_certain and re.fullmatch("[A-Z]{2,4}", word) and not text.isupper():
            break  # an abbreviation, such as the code of an airport
        if not is_particle:
            end = match.start(1) + len(word)
            count += 1
            may_be_lower = may_be_lower and not is_capital
        if word != match[1] or (match[2] and len(word) > 1 and not is_particle):
            break
        position = match.end()
    return end
