"""The names that a generated module may use, and the system calls that its process may make.

Names: builtins, modules, and the listed names of each module. Two layers use the same table: `rules` rejects
a source that uses any other name, and `views` hides all other names from the running code. A name is listed
if it computes values from values. The table leaves out every name that

- leads to another module, a frame or a namespace (`type`, `globals`, `dataclasses.fields`);
- reads or writes an attribute whose name is given as text (`getattr`, `operator.attrgetter`, `str.format`,
  `functools.update_wrapper`, `dataclasses.asdict`, `string.Formatter`), because the rules see only names in
  the source;
- evaluates text (`eval`, `typing.get_type_hints`, `functools.singledispatch`);
- returns values that do not follow from a seed (`random.random`, `id`, `hash`), or reads the clock
  (`datetime.now`).

System calls: those of an interpreter that computes and uses two pipes, found by tracing such an interpreter.
None of them takes a path, makes a descriptor, or reaches a different process. Two common entries of such
lists are missing: `futex`, which a single thread never needs, and `madvise`, with which a root process can
retire the machine's memory.
"""

import os
import sys
from typing import NamedTuple

_BUILTINS = """
    abs all any ascii bin bool bytes callable chr dict divmod enumerate filter float format frozenset hex int
    isinstance issubclass iter len list map max min next oct ord pow print property range repr reversed round
    set slice sorted staticmethod classmethod str sum super tuple zip
    ArithmeticError AssertionError AttributeError Exception IndexError KeyError LookupError NotImplemented
    NotImplementedError OverflowError RecursionError RuntimeError StopIteration TypeError ValueError
    ZeroDivisionError
"""

BUILTINS = frozenset(_BUILTINS.split())
"""The allowed builtins, including exceptions."""

_MODULES = {
    "__future__": "annotations",
    "collections": "ChainMap Counter OrderedDict defaultdict deque namedtuple",
    "collections.abc": """
        Callable Collection Container Generator Hashable ItemsView Iterable Iterator KeysView
        Mapping MutableMapping MutableSequence MutableSet Reversible Sequence Set Sized ValuesView
    """,
    "copy": "copy deepcopy",
    "dataclasses": "FrozenInstanceError KW_ONLY dataclass field",
    "datetime": "MAXYEAR MINYEAR UTC date datetime time timedelta timezone",
    "decimal": """
        Decimal InvalidOperation ROUND_CEILING ROUND_DOWN ROUND_FLOOR ROUND_HALF_DOWN
        ROUND_HALF_EVEN ROUND_HALF_UP ROUND_UP
    """,
    "enum": "Enum IntEnum StrEnum auto unique",
    "fractions": "Fraction",
    "functools": "cache cached_property cmp_to_key lru_cache partial reduce total_ordering",
    "itertools": """
        accumulate chain combinations combinations_with_replacement compress count cycle dropwhile
        filterfalse groupby islice pairwise permutations product repeat starmap takewhile tee
        zip_longest
    """,
    "json": "JSONDecodeError dumps loads",
    "math": """
        acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist e erf
        erfc exp exp2 expm1 fabs factorial floor fmod frexp fsum gamma gcd hypot inf isclose
        isfinite isinf isnan isqrt lcm ldexp lgamma log log10 log1p log2 modf nan perm pi pow prod
        radians remainder sin sinh sqrt tan tanh tau trunc
    """,
    "operator": """
        abs add and_ contains eq floordiv ge getitem gt invert itemgetter le lshift lt mod mul ne
        neg not_ or_ pos pow rshift sub truediv truth xor
    """,
    "random": "Random",
    "re": """
        A ASCII DOTALL I IGNORECASE M MULTILINE Match Pattern S VERBOSE X compile error escape
        findall finditer fullmatch match search split sub subn
    """,
    "statistics": """
        StatisticsError fmean geometric_mean harmonic_mean mean median median_high median_low mode
        multimode pstdev pvariance quantiles stdev variance
    """,
    "string": """
        ascii_letters ascii_lowercase ascii_uppercase capwords digits hexdigits punctuation
        whitespace
    """,
    "typing": """
        Any Callable ClassVar Dict Final FrozenSet Generic Iterable Iterator List Literal Mapping
        NamedTuple NewType Optional Sequence Set Tuple TypeAlias TypeVar Union cast
    """,
}

MODULES = {name: frozenset(names.split()) for name, names in _MODULES.items()}
"""The allowed modules, with the allowed names of each."""

METHODS = frozenset(("__init__", "__post_init__", "__str__", "__repr__", "__lt__"))
"""The special methods that a class may define.

Other special methods receive objects that generated code must not see.
"""


class Architecture(NamedTuple):
    """The system-call numbers of one machine architecture.

    Attributes:
        audit_number: The number by which a filter recognizes the architecture.
        unrestricted: Calls allowed with any arguments. They release or move memory, read clocks or random
            numbers, or end the process.
        memory_mapping: Calls allowed unless the memory would be executable.
        read: The call allowed only on the pipe of requests.
        write: The call allowed only on the pipe of answers.
    """

    audit_number: int
    unrestricted: tuple[int, ...]
    memory_mapping: tuple[int, ...]
    read: int
    write: int


# The unrestricted calls are brk, munmap, mremap, clock_gettime, gettimeofday, getrandom, rt_sigreturn, exit
# and exit_group, and on x86_64 also time; the mapping calls are mmap and mprotect.
ARCHITECTURES = {
    "x86_64": Architecture(
        audit_number=0xC000003E,
        unrestricted=(12, 11, 25, 228, 96, 318, 15, 60, 231, 201),
        memory_mapping=(9, 10),
        read=0,
        write=1,
    ),
    "aarch64": Architecture(
        audit_number=0xC00000B7,
        unrestricted=(214, 215, 216, 113, 169, 278, 139, 93, 94),
        memory_mapping=(222, 226),
        read=63,
        write=64,
    ),
}
"""The supported architectures, by the kernel's name."""


def current_architecture() -> Architecture | None:
    """This machine's architecture; None if its system, processor or pointer size is not supported."""
    if sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize < 2**32:
        return None
    return ARCHITECTURES.get(os.uname().machine)
