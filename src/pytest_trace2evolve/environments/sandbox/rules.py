"""The rules that a generated source must follow before it runs: anything that is not listed is rejected.

The rules are the first of three layers, and the only one that can tell a model what to write instead. They
read the syntax tree, which shows names but not values. `views` limits the use of values, and `kernel` stops
everything that Python cannot.
"""

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pytest_trace2evolve.environments.sandbox.policy import BUILTINS, METHODS, MODULES
from pytest_trace2evolve.errors import SourceRefusedError

MAX_BYTES = 64 * 1024  # limit of the source
MAX_NODES = 20_000  # limit of the syntax tree
MAX_DEPTH = 100  # limit of the syntax tree; handwritten code has about 20 levels, and one more per `elif`

_NODES = """
    Module Expr FunctionDef ClassDef Return Delete Pass Break Continue
    Assign AugAssign AnnAssign NamedExpr For While If IfExp
    Raise Try ExceptHandler Assert Import ImportFrom alias Nonlocal
    BoolOp BinOp UnaryOp Compare operator unaryop boolop cmpop
    Lambda Call keyword arguments arg Yield YieldFrom Starred
    Dict Set List Tuple Subscript Slice Attribute Name expr_context
    ListComp SetComp DictComp GeneratorExp comprehension
    Constant JoinedStr FormattedValue
"""

NODES: tuple[type[ast.AST], ...] = tuple(getattr(ast, name) for name in _NODES.split())
"""The node types of the allowed syntax."""

_SYNTAX = (
    "functions, classes without keywords, assignments, if, for, while, try, raise, assert, listed imports, "
    "expressions, comprehensions, lambdas, generators and f-strings"
)

_HIDDEN_PREFIXES = ("gi_", "cr_", "ag_", "tb_", "co_", "f_", "func_")
"""Prefixes of attributes that lead from generators, exceptions and functions to namespaces."""

_CLOCK = "it reads the clock, and a scenario follows from its seed alone"
_TEXT_LOOKUP = "it looks attributes up by text; use an f-string"
_HIDDEN = {
    "format": _TEXT_LOOKUP,
    "format_map": _TEXT_LOOKUP,
    "now": _CLOCK,
    "today": _CLOCK,
    "utcnow": _CLOCK,
    "mro": "it leads to the classes of the interpreter",
    "obj": "exceptions keep inner objects under this name; use another",
    "register": "it changes a class of the library; name the class as a base",
    "with_traceback": "it leads to frames",
}


def check(source: str, name: str) -> None:
    """Check a source by the rules.

    Raises:
        SourceRefusedError: a rule is broken; names the first such line and the allowed alternatives.
    """
    tree = _parse(source, name)
    known = _bound_names(tree) | BUILTINS
    modules = _imported_modules(tree)
    waiting: list[tuple[ast.AST, int, int]] = [(tree, 0, 0)]
    count = 0
    problems: list[tuple[int, str]] = []
    while waiting:
        node, depth, line_above = waiting.pop()
        line = int(getattr(node, "lineno", line_above))  # some nodes have none
        count += 1
        if count > MAX_NODES:
            raise _rejected(
                name, 0, f"more than {MAX_NODES} nodes of syntax; write less, or compute the tables"
            )
        if depth > MAX_DEPTH:
            raise _rejected(name, line, f"nested more than {MAX_DEPTH} levels deep; write it flatter")
        problems += [(line, problem) for problem in _problems(node, known, modules)]
        waiting += [(child, depth + 1, line) for child in ast.iter_child_nodes(node)]
    if problems:
        line, problem = min(problems, key=lambda found: found[0])
        raise _rejected(name, line, problem)
    with _rejecting(name, "compiled"):  # for errors that only the compiler finds, such as a stray `return`
        compile(tree, f"<{name}>", "exec", dont_inherit=True)


def _parse(source: str, name: str) -> ast.Module:
    try:
        size = len(source.encode())
    except UnicodeEncodeError:
        raise _rejected(name, 0, "half of a character (a lone surrogate); write plain text") from None
    if size > MAX_BYTES:
        raise _rejected(name, 0, f"{size} bytes of source; allowed are {MAX_BYTES}")
    for number, line in enumerate(source.split("\n"), 1):
        for character in line:
            if not (character.isprintable() or character in "\t\r"):
                problem = f"the invisible character U+{ord(character):04X}; write it as an escape"
                raise _rejected(name, number, problem)
    with _rejecting(name, "parsed"):
        tree = ast.parse(source)
        if not source.isascii():
            _check_names_are_ascii(source, name)
    return tree


@contextmanager
def _rejecting(name: str, done: str) -> Iterator[None]:
    """Convert errors of Python's tokenizer, parser and compiler to errors of the rules."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the source
            yield
    except SyntaxError as error:
        raise _rejected(name, error.lineno or 0, f"no Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        problem = f"it cannot be {done} ({type(error).__name__}); write it flatter"
        raise _rejected(name, 0, problem) from None


def _check_names_are_ascii(source: str, name: str) -> None:
    """Check that all names are ASCII, because Python would read `ｅｖａｌ` as `eval`."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.ERRORTOKEN) and not token.string.isascii():
            problem = f"the name {token.string!a}; names are of ASCII letters, digits and underscores"
            raise _rejected(name, token.start[0], problem)


def _rejected(name: str, line: int, problem: str) -> SourceRefusedError:
    return SourceRefusedError(f"{name}, line {line}: {problem}" if line else f"{name}: {problem}")


def _bound_names(tree: ast.Module) -> frozenset[str]:
    """All names that the source defines or assigns anywhere."""
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return frozenset(bound)


def _imported_modules(tree: ast.Module) -> dict[str, str]:
    """The modules that the source imports as a whole, by the names that it gives them."""
    found = {}
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.Import) else ():
            if alias.name in MODULES:
                package = alias.name.partition(".")[0]
                found[alias.asname or package] = alias.name if alias.asname else package
    return found


def _problems(node: ast.AST, known: frozenset[str], modules: Mapping[str, str]) -> Iterator[str]:
    """The rule violations of one node, as texts for the error message."""
    if not isinstance(node, NODES):
        yield f"`{type(node).__name__}` is not allowed; allowed are {_SYNTAX}"
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from _import_problems(node)
    elif isinstance(node, ast.Attribute):
        yield from _attribute_problems(node, modules)
    elif isinstance(node, ast.Name):
        if node.id.startswith("__"):
            yield _underscored(node.id)
        elif isinstance(node.ctx, ast.Load) and node.id not in known:
            listed = f"allowed builtins are {', '.join(sorted(BUILTINS))}"
            yield f"`{node.id}` is not allowed and nothing defines it; {listed}"
    elif isinstance(node, ast.ClassDef) and node.keywords:
        yield f"the keyword `{node.keywords[0].arg or '**'}` of a class is not allowed; name bases only"
    else:
        yield from (_underscored(name) for name in _other_names(node) if name.startswith("__"))


def _other_names(node: ast.AST) -> Iterator[str]:
    """The names in a node that is not a `Name` or an `Attribute`."""
    if isinstance(node, ast.FunctionDef):
        if node.name not in METHODS:
            yield node.name
    elif isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg | ast.keyword) and node.arg:
        yield node.arg
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name
    elif isinstance(node, ast.Nonlocal):
        yield from node.names


def _underscored(name: str) -> str:
    return (
        f"`{name}` is not allowed: it begins with an underscore; allowed are other names, and the methods "
        f"{', '.join(sorted(METHODS))}"
    )


def _attribute_problems(node: ast.Attribute, modules: Mapping[str, str]) -> Iterator[str]:
    name = node.attr
    module = _module(node.value, modules)
    if name.startswith("_"):
        if name != "__init__" or not _is_super(node.value):
            yield f"the attribute {_underscored(name)}"
    elif name.startswith(_HIDDEN_PREFIXES):
        yield f"the attribute `{name}` is not allowed: names like it lead to frames; use another"
    elif name in _HIDDEN:
        yield f"the attribute `{name}` is not allowed: {_HIDDEN[name]}"
    elif module and f"{module}.{name}" not in MODULES and name not in MODULES[module]:
        yield _unlisted_name(module, name)
    elif module and not isinstance(node.ctx, ast.Load):
        yield f"`{module}.{name}` must not be changed; allowed are names of your own"


def _module(node: ast.expr, modules: Mapping[str, str]) -> str:
    """The name of the module to which an expression refers; empty if there is none."""
    if isinstance(node, ast.Name):
        return modules.get(node.id, "")
    if isinstance(node, ast.Attribute):
        inner = f"{_module(node.value, modules)}.{node.attr}"
        return inner if inner in MODULES else ""
    return ""


def _is_super(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "super"
        and not (node.args or node.keywords)
    )


def _import_problems(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    module = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else ""
    if module and module not in MODULES:
        yield _unlisted_module(module)
        return
    for alias in node.names:
        if module and alias.name not in MODULES[module]:
            yield _unlisted_name(module, alias.name)
        elif not module and alias.name not in MODULES:
            yield _unlisted_module(alias.name)
        elif (alias.asname or "").startswith("__"):
            yield _underscored(alias.asname or "")


def _unlisted_module(name: str) -> str:
    return f"`{name}` must not be imported; allowed are {', '.join(sorted(MODULES))}"


def _unlisted_name(module: str, name: str) -> str:
    return f"`{module}.{name}` is not allowed; allowed are {', '.join(sorted(MODULES[module]))}"
