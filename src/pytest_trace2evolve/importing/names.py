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
    "mr mrs ms miss mx dr prof jr sr de da di du la le van von der den dos del die ter ten te dos "
    "das bin ibn al el and of"
)


@functools.cache
def _words(file: str) -> tuple[frozenset[str], ...]:
    text = (resources.files("pytest_trace2evolve.importing") / file).read_text(encoding="utf-8")
    return tuple(frozenset(part.casefold().split()) for part in text.split("# may be names\n"))


def common_words() -> frozenset[str]:
    """Return words that are not names, unless a phrase such as "my name is" leaves no doubt."""
    return _words("common_words.txt")[0]


def ambiguous_words() -> frozenset[str]:
    """Return common words that are also names, such as Mark."""
    return _words("common_words.txt")[1]


@functools.cache
def first_names() -> frozenset[str]:
    """Return common first names that are not ordinary words."""
    return _words("first_names.txt")[0] - common_words() - ambiguous_words()


@functools.lru_cache(maxsize=100_000)
def folded(text: str) -> str:
    """Return a name in lower case, without accents."""
    plain = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in plain if not unicodedata.combining(letter)).casefold()


_STRONG = re.compile(
    r"(?i)\b(?:(?:my|his|her|their|whose|the|your|full|first|last|middle|maiden|legal|user'?s?"
    r"|passenger|guest|customer|account|cardholder|contact|given|family)\s+"
    r"(?:full |first |last |middle |maiden |sur|complete |given |family |legal )?names?(?:\s+(?:on"
    r"|for|of|under) (?:the |my |this |that )?(?:account|card|booking|order|reservation|ticket|file"
    r"|profile|it))?(?:\s+(?:is|was|are)|'s|:|=|,)"
    r"|name'?s|surname is|names? (?:is|are)|named|call me|goes by|me llamo|mi nombre es"
    r"|je m'?appelle|mein name ist|ich hei(?:ß|ss)e|mi chiamo|meu nome [ée]"
    r"|(?:in|under) the name(?: of)?|on behalf of|(?:registered|addressed|issued|belongs|belonging) to"
    r"|(?:speaking|spoke|speak|talk|talked|talking|chatting) (?:to|with)|signed(?: by)?|attn:?|c/o"
    r"|(?:passengers?|guests?|travell?ers?|cardholder|recipient|customer|contact person"
    r"|account holder)(?: (?:is|are|name|named)|:)"
    r"|(?:my|his|her|our) (?:wife|husband|partner|son|daughter|mother|father|mom|mum|dad|friend"
    r"|colleague|boss|brother|sister|assistant|spouse|girlfriend|boyfriend|roommate"
    r"|fianc[ée]e?)(?:,| is|'s name is| named)?"
    r"|(?<!\w)(?:mr|mrs|ms|miss|mx|dr|prof|herr|frau|se[ñn]ora?|monsieur|madame"
    r"|mme)\.?)\s+[\"'“(]?(?=[^\W\d_])"
)
_CAPITAL = r"(?=[A-ZÀ-Þ\u0100-\u024f])"
_SELF = re.compile(
    r"(?i:\b(?:i am|i'?m|i’m|this is|it is|it's|it’s|ich bin|soy|je suis|here is|here's|passenger"
    rf"|customer|guest|client|agent|contact))[,:]?\s+{_CAPITAL}"
)
_GREETING = re.compile(
    r"(?i:\b(?:hello|hi|hey|dear|greetings|good (?:morning|afternoon|evening|day)|hallo|hola|bonjour"
    r"|ciao|liebe[r]?|thanks|thank you(?: so much| very much)?|cheers|welcome(?: back)?)),?\s+"
    rf"(?:(?:there|again),?\s+)?{_CAPITAL}"
)
_REPLY = re.compile(
    r"(?i:\b(?:sorry|great|perfect|sure|understood|apologies|of course|certainly|absolutely|okay|ok|yes|no"
    rf"|bye|goodbye|nice to meet you|got it|no problem|done|all set)),\s+{_CAPITAL}"
)
_FULL = re.compile(rf"(?i:\b(?:for|with|by|about|and|of)\s+){_CAPITAL}")
_SIGNATURE = re.compile(
    r"(?i:(?:^|\n)[ \t]*(?:(?:kind|best|warm|many)?\s?(?:regards|wishes)|best|sincerely|cheers|thanks"
    r"|thank you|yours(?: truly| sincerely)?|love|greetings|br|take care|all the best)[,!.]?\s*\n\s*"
    rf"|[-–—~]\s*){_CAPITAL}"
)
_CLOSING = re.compile(r"[ \t]{0,3}(?:[,.!?:;\n—–]|-\s|$)")
_TITLED = re.compile(r"(?<!\w)((?:[A-ZÀ-Þ][\w'’-]{1,40} ){0,2}[A-ZÀ-Þ][\w'’-]{1,40}),? (?:here|speaking)\b")
_WORD = re.compile(r"[^\W\d_]{1,60}(?:['’-][^\W\d_]{1,60}){0,3}\.?")
_HARD_STOPS = word_set(
    "i i'm i’m you he she it we they the a an is are was and or but not on in at to for from with of "
    "my your his her our their this that calling writing here speaking please can could would have "
    "has am so if when because as who which order booking account email phone address"
)


def name_spans(text: str, *, by_form: bool = False) -> Iterator[tuple[int, int]]:
    """Yield the start and end of names that a phrase, greeting, signature or common first name identifies.

    Args:
        text: The text.
        by_form: Whether two or three capitalized words in a row, none of them common, also count as a name.
            This suits messages of customers, because agents also capitalize the names of products.
    """
    for match in _STRONG.finditer(text):
        end = _name_end(text, match.end(), is_certain=True)
        while end > match.end():
            yield match.end(), end
            connector = re.compile(r"\s*(?:,|&|\band\b)\s+").match(text, end)
            if connector is None or not text[connector.end() : connector.end() + 1].isupper():
                break
            start, end = connector.end(), _name_end(text, connector.end(), is_certain=False)
            if end > start:
                yield start, end
            break
    for pattern, must_close in ((_SELF, False), (_GREETING, False), (_REPLY, True), (_SIGNATURE, True)):
        for match in pattern.finditer(text):
            end = _name_end(text, match.end(), is_certain=False)
            closing = _CLOSING.match(text, end)
            if pattern is _SIGNATURE and closing and text[end:].strip(" .\n"):
                closing = None  # a list, not the end of the message
            if end > match.end() and (closing or not must_close):
                yield match.end(), end
    for match in _FULL.finditer(text):
        end = _name_end(text, match.end(), is_certain=False)
        if _is_full_name(text[match.end() : end]):
            yield match.end(), end
    for match in _TITLED.finditer(text):
        if _name_end(text, match.start(1), is_certain=False) == match.end(1):
            yield match.span(1)
    known_first_names = first_names()
    for match in _WORD.finditer(text):
        first_part = match[0].rstrip(".").partition("'")[0].partition("’")[0].partition("-")[0]
        is_place = _PLACE_BEFORE.search(text, max(0, match.start() - 8), match.start())
        is_name = first_part[:1].isupper() or (by_form and len(first_part) > 2)
        if is_name and folded(first_part) in known_first_names and not is_place:
            yield (
                match.start(),
                max(_name_end(text, match.start(), is_certain=True), match.start() + len(first_part)),
            )
        elif (
            by_form
            and first_part[:1].isupper()
            and not is_place
            and not _ARTICLE.search(text, max(0, match.start() - 9), match.start())
        ):
            end = _name_end(text, match.start(), is_certain=False)
            if _is_full_name(text[match.start() : end]) and not _PLACE_AFTER.match(text, end):
                yield match.start(), end


_ARTICLE = re.compile(
    r"(?i)\b(?:a|an|the|my|your|our|this|that|these|those|both|new|two|three|any|some|another) $"
)
_PLACE_AFTER = re.compile(
    r",? (?i:airport|hotel|street|avenue|road|university|hospital|station|beach|international)\b"
)
_PLACE_BEFORE = re.compile(r"\b(?:San|Los|Las|Santa|Fort|Saint|St\.?|Port|Mount|Lake) $")


def _is_full_name(text: str) -> bool:
    """Whether two or three words, none of them common, look like a first and a last name."""
    words = text.split()
    return 2 <= len(words) <= 3 and not any(folded(word) in common_words() for word in words)


def _name_end(text: str, start: int, *, is_certain: bool) -> int:
    """Return the end of the name that starts at `start`; `start` itself if no name starts there."""
    end, position, count, starts_capital = start, start, 0, False
    while count < 4 and (match := _WORD.match(text, position)):
        word = match[0].rstrip(".")
        bare_word = re.sub(r"['’]s$", "", word)
        lower_word = bare_word.casefold()
        is_capital = bare_word[:1].isupper() or not (bare_word.islower() or bare_word.isupper())
        is_particle = count > 0 and lower_word in PARTICLES and lower_word not in ("and", "of")
        if count == 0:
            starts_capital = is_capital
        if not is_certain and len(word) <= 4 and len(word) > 1 and word.isupper() and not text.isupper():
            break  # an abbreviation, such as the code of an airport
        if lower_word.partition("'")[0].partition("’")[0] in _HARD_STOPS or (
            not is_particle and starts_capital and not is_capital
        ):
            break
        if not (is_certain and is_capital) and folded(lower_word) in common_words():
            break
        if not is_certain and not is_capital and not is_particle:
            break
        if lower_word not in PARTICLES:
            end = match.start() + len(bare_word)
            count += 1
        elif count == 0 and not is_certain:
            break
        is_initial = len(word) == 1 and match[0].endswith(".")
        if bare_word != word or (match[0].endswith(".") and not is_initial and lower_word not in PARTICLES):
            break
        gap = re.compile(r"[ \t]{1,2}").match(text, match.start() + len(match[0]))
        if gap is None:
            break
        position = gap.end()
    return end if count else start
