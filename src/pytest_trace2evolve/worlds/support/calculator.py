"""The `calculate` tool: Python's arithmetic without `eval`, in bounded time.

An agent writes the expression, so a power such as 9**9**9 is rejected before it is computed. The bound on
integers and all error messages are those of the toolkit of `inspect_evals`.
"""

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping

Number = int | float

_MAX_BITS = 10_000  # of an integer result of an operation
_INVALID_NODE_MESSAGE = "Invalid expression: only numbers, +, -, *, /, //, ** and parentheses are allowed"


def evaluate(expression: str) -> str:
    """Return the value of an arithmetic expression, rounded to cents, as text.

    Raises:
        ValueError: the expression is not arithmetic, or has no value; the message says why.
        TypeError, AttributeError: the expression is not text.
    """
    for character in expression:
        # For a value that is not text, this loop raises the same error as the reference.
        if character not in "0123456789+-*/(). ":
            raise ValueError("Invalid characters in expression")
    try:
        tree = ast.parse(expression.lstrip(" "), mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"Invalid expression: {error}") from None
    try:
        return str(round(float(_evaluate_tree(tree.body)), 2))
    except ArithmeticError as error:
        raise ValueError(f"Cannot evaluate expression: {error}") from None


def _evaluate_tree(root: ast.expr) -> Number:
    """Evaluate the tree from its leaves, without recursion, because a sum may have thousands of terms."""
    stack: list[Number] = []
    for node in _iterate_leaves_first(root):
        match node:
            case ast.Constant(value=int() | float() as number):
                stack.append(number)
            case ast.UnaryOp(op=operation) if type(operation) in _SIGNS:
                stack.append(_check_size(_SIGNS[type(operation)](stack.pop())))
            case ast.BinOp(op=operation) if type(operation) in _OPERATIONS:
                right = stack.pop()
                stack.append(_check_size(_OPERATIONS[type(operation)](stack.pop(), right)))
            case _:
                raise ValueError(_INVALID_NODE_MESSAGE)
    return stack.pop()


def _iterate_leaves_first(root: ast.expr) -> Iterator[ast.expr]:
    """Yield operands before their operation, left before right; the parts of any other node are omitted."""
    nodes: list[ast.expr] = []
    pending = [root]
    while pending:
        node = pending.pop()
        nodes.append(node)
        if isinstance(node, ast.BinOp):
            pending += (node.left, node.right)
        elif isinstance(node, ast.UnaryOp):
            pending.append(node.operand)
    return reversed(nodes)


def _check_size(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise ValueError("Integer result is too large")
    return value


def _power(base: Number, exponent: Number) -> Number:
    are_integers = isinstance(base, int) and isinstance(exponent, int)
    if are_integers and exponent > 0 and abs(base) > 1 and _has_too_many_bits(abs(base), exponent):
        raise ValueError("Exponentiation result is too large")
    value = base**exponent
    if isinstance(value, complex):
        raise ValueError("Cannot evaluate expression: the result is a complex number")
    return value


def _has_too_many_bits(base: Number, exponent: Number) -> bool:
    return exponent > _MAX_BITS or exponent * math.log2(base) > _MAX_BITS


_SIGNS: Mapping[type[ast.unaryop], Callable[[Number], Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_OPERATIONS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: _power,
}
