"""What a generated module may name: builtins, modules, and of each module the listed names only.

One table for two readers: `rules` rejects a source that names anything else, and `views` gives the running
code nothing else. A name is listed if it computes values from values. Left out is whatever

- leads to another module, a frame or a namespace (`type`, `globals`, `dataclasses.fields`);
- takes a name as a text and reads or writes the attribute (`getattr`, `operator.attrgetter`, `str.format`,
  `functools.update_wrapper`, `dataclasses.asdict`, `string.Formatter`): the rules see only names in the
  source;
- evaluates a text (`eval`, `typing.get_type_hints`, `functools.singledispatch`);
- draws numbers that no seed decides (`random.random`, `id`, `hash`), or reads the clock (`datetime.now`).
"""

_BUILTINS = """
    abs all any ascii bin bool bytes callable chr dict divmod enumerate filter float format frozenset hex int
    isinstance issubclass iter len list map max min next oct ord pow print property range repr reversed round
    set slice sorted staticmethod classmethod str sum super tuple zip
    ArithmeticError AssertionError AttributeError Exception IndexError KeyError LookupError NotImplemented
    NotImplementedError OverflowError RecursionError RuntimeError StopIteration TypeError ValueError
    ZeroDivisionError
"""

BUILTINS = frozenset(_BUILTINS.split())
"""The builtins, exceptions among them."""

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
"""The modules by name, and what may be taken from each."""

METHODS = frozenset(("__init__", "__post_init__", "__str__", "__repr__", "__lt__"))
"""The special methods that a class may define. Others get objects that the class must not see."""
