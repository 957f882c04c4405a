"""The rules that a generated source must keep before anything of it runs: what is not listed is refused.

The first of three layers, and the only one that can say to a model what to write instead. It reads the syntax
tree, so it knows names and not values: `views` holds what values can do, `kernel` holds what Python cannot.
"""

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator, Mapping

from pytest_trace2evolve.environments.sandbox.allowed import BUILTINS, METHODS, MODULES
from pytest_trace2evolve.errors import SourceRefusedError

MOST_BYTES = 64 * 1024
"""Bytes of the longest source."""

MOST_NODES = 20_000
"""Nodes of the largest syntax tree."""

MOST_DEPTH = 100
"""Levels of the deepest syntax tree: what people write has about twenty, and one more for each `elif`."""

NODES: tuple[type[ast.AST], ...] = (
    *(
        ast.Module,
        ast.Expr,
        ast.FunctionDef,
        ast.ClassDef,
        ast.Return,
        ast.Delete,
        ast.Pass,
        ast.Break,
        ast.Continue,
    ),
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.While, ast.If, ast.IfExp),
    *(ast.Raise, ast.Try, ast.ExceptHandler, ast.Assert, ast.Import, ast.ImportFrom, ast.alias, ast.Nonlocal),
    *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
    *(ast.Lambda, ast.Call, ast.keyword, ast.arguments, ast.arg, ast.Yield, ast.YieldFrom, ast.Starred),
    *(
        ast.Dict,
        ast.Set,
        ast.List,
        ast.Tuple,
        ast.Subscript,
        ast.Slice,
        ast.Attribute,
        ast.Name,
        ast.expr_context,
    ),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension),
    *(ast.Constant, ast.JoinedStr, ast.FormattedValue),
)
"""The syntax that may be used."""

_SYNTAX = (
    "functions, classes without keywords, assignments, if, for, while, try, raise, assert, listed imports, "
    "expressions, comprehensions, lambdas, generators and f-strings"
)

_HIDDEN_PREFIXES = ("gi_", "cr_", "ag_", "tb_", "co_", "f_", "func_")
"""Beginnings of attributes that lead from generators, exceptions and functions to namespaces."""

_HIDDEN = {
    "format": "it looks attributes up by text; use an f-string",
    "format_map": "it looks attributes up by text; use an f-string",
    **dict.fromkeys(
        ("now", "today", "utcnow"), "it reads the clock, and a scenario follows from its seed alone"
    ),
    "mro": "it leads to the classes of the interpreter",
    "obj": "exceptions keep inner objects under this name; use another",
    "register": "it changes a class of the library; name the class as a base",
    "with_traceback": "it leads to frames",
}

Finding = tuple[int, str]
"""A line, and what is wrong in it."""


def check(source: str, name: str) -> ast.Module:
    """Hold a source against the rules.

    Args:
        source: The source of the module.
        name: What to call it in an error.

    Returns:
        Its syntax tree.

    Raises:
        SourceRefusedError: the first line that breaks a rule, what is not allowed and what is.
    """
    tree = _parsed(source, name)
    known = _bound_names(tree) | BUILTINS
    modules = _modules(tree)
    waiting: list[tuple[ast.AST, int, int]] = [(tree, 0, 0)]
    count = 0
    found: list[Finding] = []
    while waiting:
        node, depth, above = waiting.pop()
        # Some nodes have no line of their own.
        line = int(getattr(node, "lineno", above))
        count += 1
        if count > MOST_NODES:
            raise _refused(
                name, 0, f"more than {MOST_NODES} nodes of syntax; write less, or compute the tables"
            )
        if depth > MOST_DEPTH:
            raise _refused(name, line, f"nested more than {MOST_DEPTH} levels deep; write it flatter")
        found += [(line, told) for told in _findings(node, known, modules)]
        waiting += [(child, depth + 1, line) for child in ast.iter_child_nodes(node)]
    if found:
        line, told = min(found, key=lambda one: one[0])
        raise _refused(name, line, told)
    _check_it_compiles(tree, name)
    return tree


def _parsed(source: str, name: str) -> ast.Module:
    """The tree of a source that is fit to be parsed at all."""
    try:
        size = len(source.encode())
    except UnicodeEncodeError:
        raise _refused(name, 0, "half of a character (a lone surrogate); write plain text") from None
    if size > MOST_BYTES:
        raise _refused(name, 0, f"{size} bytes of source; allowed are {MOST_BYTES}")
    for number, line in enumerate(source.split("\n"), 1):
        odd = next((one for one in line if not (one.isprintable() or one in "\t\r")), None)
        if odd is not None:
            raise _refused(name, number, f"the invisible character U+{ord(odd):04X}; write it as an escape")
    try:
        with warnings.catch_warnings():
            # What Python thinks of an escape is no concern of the session's.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        if not source.isascii():
            _check_names_are_ascii(source, name)
    except SyntaxError as error:
        raise _refused(name, error.lineno or 0, f"no Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise _refused(name, 0, f"it cannot be parsed ({type(error).__name__}); write it flatter") from None
    return tree


def _check_it_compiles(tree: ast.Module, name: str) -> None:
    """What the parser lets pass (`return` outside a function) is refused here too, where it can be told."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(tree, f"<{name}>", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _refused(name, error.lineno or 0, f"no Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise _refused(name, 0, f"it cannot be compiled ({type(error).__name__}); write it flatter") from None


def _check_names_are_ascii(source: str, name: str) -> None:
    """Python reads `ｅｖａｌ` as `eval`; a name that is not what it looks like is refused as such."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.ERRORTOKEN) and not token.string.isascii():
            told = f"the name {token.string!a}; names are of ASCII letters, digits and underscores"
            raise _refused(name, token.start[0], told)


def _refused(name: str, line: int, told: str) -> SourceRefusedError:
    return SourceRefusedError(f"{name}, line {line}: {told}" if line else f"{name}: {told}")


def _bound_names(tree: ast.Module) -> frozenset[str]:
    """Every name that the source gives a meaning to, wherever."""
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


def _modules(tree: ast.Module) -> dict[str, str]:
    """The names under which the source has whole modules, and which."""
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imports = [alias for alias in imports if alias.name in MODULES]
    return {
        one.asname or one.name.partition(".")[0]: one.name if one.asname else one.name.partition(".")[0]
        for one in imports
    }


def _findings(node: ast.AST, known: frozenset[str], modules: Mapping[str, str]) -> Iterator[str]:
    """What one node does that it must not."""
    if not isinstance(node, NODES):
        yield f"`{type(node).__name__}` is not allowed; allowed are {_SYNTAX}"
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from _wrong_import(node)
    elif isinstance(node, ast.Attribute):
        yield from _wrong_attribute(node, modules)
    elif isinstance(node, ast.Name):
        if node.id.startswith("__"):
            yield _underscored(node.id)
        elif isinstance(node.ctx, ast.Load) and node.id not in known:
            listed = f"allowed builtins are {', '.join(sorted(BUILTINS))}"
            yield f"`{node.id}` is not allowed and nothing defines it; {listed}"
    elif isinstance(node, ast.ClassDef) and node.keywords:
        yield f"the keyword `{node.keywords[0].arg or '**'}` of a class is not allowed; name bases only"
    else:
        yield from (_underscored(one) for one in _other_names(node) if one.startswith("__"))


def _other_names(node: ast.AST) -> Iterator[str]:
    """The names that a node brings besides `Name` and `Attribute`."""
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


def _wrong_attribute(node: ast.Attribute, modules: Mapping[str, str]) -> Iterator[str]:
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
        yield _unknown_name(module, name)
    elif module and not isinstance(node.ctx, ast.Load):
        yield f"`{module}.{name}` must not be changed; allowed are names of your own"


def _module(node: ast.expr, modules: Mapping[str, str]) -> str:
    """The module that an expression names; empty where it names none."""
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


def _wrong_import(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name not in MODULES:
                yield _unknown_module(alias.name)
            elif (alias.asname or "").startswith("__"):
                yield _underscored(alias.asname or "")
        return
    module = "." * node.level + (node.module or "")
    if module not in MODULES:
        yield _unknown_module(module)
        return
    for alias in node.names:
        if alias.name not in MODULES[module]:
            yield _unknown_name(module, alias.name)
        elif (alias.asname or "").startswith("__"):
            yield _underscored(alias.asname or "")


def _unknown_module(name: str) -> str:
    return f"`{name}` must not be imported; allowed are {', '.join(sorted(MODULES))}"


def _unknown_name(module: str, name: str) -> str:
    return f"`{module}.{name}` is not allowed; allowed are {', '.join(sorted(MODULES[module]))}"
