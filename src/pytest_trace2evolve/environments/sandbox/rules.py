"""The rules that a generated source must follow before it runs: anything that is not listed is rejected.

The rules are the first of three layers, and the only one that can tell a model what to write instead. They
inspect the syntax tree, which shows names but not values. `views` limits the use of values, and `kernel`
stops everything that Python cannot.
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

_ALLOWED_NODE_NAMES = """
    Module Expr FunctionDef ClassDef Return Delete Pass Break Continue
    Assign AugAssign AnnAssign NamedExpr For While If IfExp
    Raise Try ExceptHandler Assert Import ImportFrom alias Nonlocal
    BoolOp BinOp UnaryOp Compare operator unaryop boolop cmpop
    Lambda Call keyword arguments arg Yield YieldFrom Starred
    Dict Set List Tuple Subscript Slice Attribute Name expr_context
    ListComp SetComp DictComp GeneratorExp comprehension
    Constant JoinedStr FormattedValue
"""

ALLOWED_NODES: tuple[type[ast.AST], ...] = tuple(getattr(ast, name) for name in _ALLOWED_NODE_NAMES.split())
"""The node types of the allowed syntax."""

_ALLOWED_SYNTAX = (
    "functions, classes without keywords, assignments, if, for, while, try, raise, assert, listed imports, "
    "expressions, comprehensions, lambdas, generators and f-strings"
)

_FORBIDDEN_PREFIXES = ("gi_", "cr_", "ag_", "tb_", "co_", "f_", "func_")
"""Prefixes of attributes that lead from generators, exceptions and functions to namespaces."""

_CLOCK_PROBLEM = "it reads the clock, but a scenario must depend only on its seed"
_TEXT_LOOKUP_PROBLEM = "it looks up attributes by text; use an f-string"
_FORBIDDEN_ATTRIBUTES = {
    "format": _TEXT_LOOKUP_PROBLEM,
    "format_map": _TEXT_LOOKUP_PROBLEM,
    "now": _CLOCK_PROBLEM,
    "today": _CLOCK_PROBLEM,
    "utcnow": _CLOCK_PROBLEM,
    "mro": "it leads to the classes of the interpreter",
    "obj": "exceptions keep inner objects under this name; use a different name",
    "register": "it changes a class of the library; name the class as a base",
    "with_traceback": "it leads to frames",
}


def check_rules(source: str, name: str) -> None:
    """Check that a source follows the rules.

    Raises:
        SourceRefusedError: a rule is broken; the message gives the first such line and the allowed
            alternatives.
    """
    tree = _parse(source, name)
    known_names = _bound_names(tree) | BUILTINS
    modules = _imported_modules(tree)
    stack: list[tuple[ast.AST, int, int]] = [(tree, 0, 0)]
    node_count = 0
    problems: list[tuple[int, str]] = []
    while stack:
        node, depth, line_above = stack.pop()
        line = int(getattr(node, "lineno", line_above))  # some nodes have no line
        node_count += 1
        if node_count > MAX_NODES:
            raise _rejection(
                name, 0, f"more than {MAX_NODES} nodes of syntax; write less, or compute the tables"
            )
        if depth > MAX_DEPTH:
            raise _rejection(name, line, f"nested more than {MAX_DEPTH} levels deep; flatten it")
        problems += [(line, problem) for problem in _node_problems(node, known_names, modules)]
        stack += [(child, depth + 1, line) for child in ast.iter_child_nodes(node)]
    if problems:
        line, problem = min(problems, key=lambda entry: entry[0])
        raise _rejection(name, line, problem)
    with _convert_errors(
        name, "compiled"
    ):  # for errors that only the compiler finds, such as a stray `return`
        compile(tree, f"<{name}>", "exec", dont_inherit=True)


def _parse(source: str, name: str) -> ast.Module:
    try:
        size = len(source.encode())
    except UnicodeEncodeError:
        raise _rejection(name, 0, "a lone surrogate (half of a character); write plain text") from None
    if size > MAX_BYTES:
        raise _rejection(name, 0, f"the source has {size} bytes, but the limit is {MAX_BYTES}")
    for number, line in enumerate(source.split("\n"), 1):
        for character in line:
            if not (character.isprintable() or character in "\t\r"):
                problem = f"the invisible character U+{ord(character):04X}; write it as an escape"
                raise _rejection(name, number, problem)
    with _convert_errors(name, "parsed"):
        tree = ast.parse(source)
        if not source.isascii():
            _check_names_are_ascii(source, name)
    return tree


@contextmanager
def _convert_errors(name: str, action: str) -> Iterator[None]:
    """Convert errors of Python's tokenizer, parser and compiler to `SourceRefusedError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about escapes in the source
            yield
    except SyntaxError as error:
        raise _rejection(name, error.lineno or 0, f"invalid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        problem = f"it cannot be {action} ({type(error).__name__}); simplify it"
        raise _rejection(name, 0, problem) from None


def _check_names_are_ascii(source: str, name: str) -> None:
    """Check that all names are ASCII, because Python would read `ｅｖａｌ` as `eval`."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.ERRORTOKEN) and not token.string.isascii():
            problem = (
                f"the name {token.string!a}; names must consist of ASCII letters, digits and underscores"
            )
            raise _rejection(name, token.start[0], problem)


def _rejection(name: str, line: int, problem: str) -> SourceRefusedError:
    return SourceRefusedError(f"{name}, line {line}: {problem}" if line else f"{name}: {problem}")


def _bound_names(tree: ast.Module) -> frozenset[str]:
    """All names that the source defines or assigns anywhere."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return frozenset(names)


def _imported_modules(tree: ast.Module) -> dict[str, str]:
    """The modules that the source imports as a whole, by the names under which it imports them."""
    modules = {}
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.Import) else ():
            if alias.name in MODULES:
                package = alias.name.partition(".")[0]
                modules[alias.asname or package] = alias.name if alias.asname else package
    return modules


def _node_problems(node: ast.AST, known_names: frozenset[str], modules: Mapping[str, str]) -> Iterator[str]:
    """The rule violations of one node, as texts for the error message."""
    if not isinstance(node, ALLOWED_NODES):
        yield f"`{type(node).__name__}` is not allowed; allowed are {_ALLOWED_SYNTAX}"
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from _import_problems(node)
    elif isinstance(node, ast.Attribute):
        yield from _attribute_problems(node, modules)
    elif isinstance(node, ast.Name):
        if node.id.startswith("__"):
            yield _underscore_problem(node.id)
        elif isinstance(node.ctx, ast.Load) and node.id not in known_names:
            allowed_names = f"allowed builtins are {', '.join(sorted(BUILTINS))}"
            yield f"`{node.id}` is not allowed and is not defined; {allowed_names}"
    elif isinstance(node, ast.ClassDef) and node.keywords:
        yield f"the keyword `{node.keywords[0].arg or '**'}` of a class is not allowed; only bases are"
    else:
        yield from (_underscore_problem(name) for name in _identifiers(node) if name.startswith("__"))


def _identifiers(node: ast.AST) -> Iterator[str]:
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


def _underscore_problem(name: str) -> str:
    return (
        f"`{name}` is not allowed: it begins with an underscore; allowed are other names, and the methods "
        f"{', '.join(sorted(METHODS))}"
    )


def _attribute_problems(node: ast.Attribute, modules: Mapping[str, str]) -> Iterator[str]:
    name = node.attr
    module = _referenced_module(node.value, modules)
    if name.startswith("_"):
        if name != "__init__" or not _is_super(node.value):
            yield f"the attribute {_underscore_problem(name)}"
    elif name.startswith(_FORBIDDEN_PREFIXES):
        yield f"the attribute `{name}` is not allowed: such names lead to frames; use a different name"
    elif name in _FORBIDDEN_ATTRIBUTES:
        yield f"the attribute `{name}` is not allowed: {_FORBIDDEN_ATTRIBUTES[name]}"
    elif module and f"{module}.{name}" not in MODULES and name not in MODULES[module]:
        yield _unlisted_name_problem(module, name)
    elif module and not isinstance(node.ctx, ast.Load):
        yield f"`{module}.{name}` must not be changed; allowed are names of your own"


def _referenced_module(node: ast.expr, modules: Mapping[str, str]) -> str:
    """The name of the module to which an expression refers; empty if there is none."""
    if isinstance(node, ast.Name):
        return modules.get(node.id, "")
    if isinstance(node, ast.Attribute):
        full_name = f"{_referenced_module(node.value, modules)}.{node.attr}"
        return full_name if full_name in MODULES else ""
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
        yield _unlisted_module_problem(module)
        return
    for alias in node.names:
        if module and alias.name not in MODULES[module]:
            yield _unlisted_name_problem(module, alias.name)
        elif not module and alias.name not in MODULES:
            yield _unlisted_module_problem(alias.name)
        elif (alias.asname or "").startswith("__"):
            yield _underscore_problem(alias.asname or "")


def _unlisted_module_problem(name: str) -> str:
    return f"`{name}` must not be imported; allowed are {', '.join(sorted(MODULES))}"


def _unlisted_name_problem(module: str, name: str) -> str:
    return f"`{module}.{name}` is not allowed; allowed are {', '.join(sorted(MODULES[module]))}"
