"""What operations are made of: axes of results, printers, ways to ask an algebra, reverse rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Final

from qkvac.spec.grammar.operation import (
    ATOM,
    SUM,
    Axes,
    Backward,
    Evaluation,
    Page,
    Printer,
    mathml_sign,
)
from qkvac.spec.grammar.syntax import Expr, Number, Op, SpecError, walk

ONE: Final = Number(Fraction(1))

Parts = Iterator[tuple[Expr, Expr]]


# --- axes ----------------------------------------------------------------------------------


def broadcast(x: Axes, y: Axes) -> Axes:
    """Axes of an elementwise result: the longer list, with what stands against a 1."""
    longer, shorter = (x, y) if len(x) >= len(y) else (y, x)
    lead = len(longer) - len(shorter)
    pairs = zip(longer[lead:], shorter, strict=True)
    return (*longer[:lead], *(right if left == ONE else left for left, right in pairs))


def elementwise(node: Op, axes: Sequence[Axes]) -> Axes:
    return broadcast(*axes)


def quotient(node: Op, axes: Sequence[Axes]) -> Axes:
    if axes[1]:
        raise SpecError("only a scalar may stand below the bar of /")
    return axes[0]


def product(node: Op, axes: Sequence[Axes]) -> Axes:
    left, right = axes
    return (*broadcast(left[:-2], right[:-2]), left[-2], right[-1])


def scalar(node: Op, axes: Sequence[Axes]) -> Axes:
    return ()


def softmax(node: Op, axes: Sequence[Axes]) -> Axes:
    scores, *masks = axes
    for mask in masks:
        if len(mask) > len(scores):
            counts = f"{len(mask)} declared axes for scores with {len(scores)}"
            raise SpecError(f"a mask with {counts}")
    return scores


def summed(node: Op, axes: Sequence[Axes]) -> Axes:
    assert node.axis is not None
    return (*axes[0][: node.axis], ONE, *axes[0][node.axis + 1 :])


def split(node: Op, axes: Sequence[Axes]) -> Axes:
    *lead, rows, width = axes[0]
    heads = node.args[1]
    part: Expr = Op("divide", (width, heads))
    if isinstance(width, Op) and width.name == "multiply" and heads in width.args:
        part = width.args[1 - width.args.index(heads)]
    return (*lead, heads, rows, part)


def merged(node: Op, axes: Sequence[Axes]) -> Axes:
    *lead, heads, rows, width = axes[0]
    whole: Expr = Op("multiply", (heads, width))
    if isinstance(width, Op) and width.name == "divide" and width.args[1] == heads:
        whole = width.args[0]
    return (*lead, rows, whole)


def table(node: Op, axes: Sequence[Axes]) -> Axes:
    if len(axes[0]) != 2:
        raise SpecError(f"take needs a table with 2 declared axes, got {len(axes[0])}")
    return (*axes[1], axes[0][-1])


def like_last(node: Op, axes: Sequence[Axes]) -> Axes:
    return axes[-1]


# --- places --------------------------------------------------------------------------------


def sizes(node: Op, axes: Sequence[Axes]) -> Axes:
    """A triangle: who comes before whom."""
    return node.args


def heads_of_columns(node: Op, axes: Sequence[Axes]) -> Axes:
    return (axes[0][-1], node.args[1])


def columns_of_heads(node: Op, axes: Sequence[Axes]) -> Axes:
    return (axes[0][-3], axes[0][-1])


def shared_heads(node: Op, axes: Sequence[Axes]) -> Axes:
    return (axes[0][-3], node.args[1])


def entries(node: Op, axes: Sequence[Axes]) -> Axes:
    """Rows of a table, which are found by their number."""
    return axes[0][:1]


def first_entries(node: Op, axes: Sequence[Axes]) -> Axes:
    return (axes[0][0], node.args[1])


def everything(node: Op, axes: Sequence[Axes]) -> Axes:
    return tuple(axis for operand in axes for axis in operand)


# --- printers ------------------------------------------------------------------------------


def infix(sign: str, level: int) -> Printer:
    def printed(node: Op, page: Page) -> str:
        left, right = node.args
        return f"{page.of(left, level)} {sign} {page.of(right, level + 1)}"

    return printed


def infix_mathml(sign: Callable[[Op, Page], str], level: int) -> Printer:
    def printed(node: Op, page: Page) -> str:
        left, right = node.args
        return f"<mrow>{page.of(left, level)}{sign(node, page)}{page.of(right, level + 1)}</mrow>"

    return printed


def infix_numpy(sign: str, level: int, keep: int = 0) -> Printer:
    def printed(node: Op, page: Page) -> str:
        left, right = node.args
        rank = max(page.rank(left), page.rank(right))
        first = raised(left, page, level, rank, keep)
        return f"{first} {sign} {raised(right, page, level + 1, rank, keep)}"

    return printed


def raised(node: Expr, page: Page, level: int, rank: int, keep: int) -> str:
    """An operand with singleton axes inserted; one axis alone carries no batch, and broadcasts."""
    own = page.rank(node)
    if own in (0, 1, rank):
        return page.of(node, level)
    new, old = "None, " * (rank - own), ", ".join(":" * (keep or own))
    return f"{page.of(node, ATOM)}[..., {new}{old}]"


def times(node: Op, page: Page) -> str:
    """Of tensors, entry by entry, with a sign that cannot be taken for a matrix product."""
    return mathml_sign("⋅" if any(map(page.is_scalar, node.args)) else "⊙")


def symbol(sign: str) -> Callable[[Op, Page], str]:
    return lambda node, page: mathml_sign(sign)


def first_numpy(node: Op, page: Page) -> str:
    rest = ", :" * (page.rank(node.args[0]) - 1)
    return f"{page.of(node.args[0], ATOM)}[..., :{page.of(node.args[1])}{rest}]"


def sum_numpy(node: Op, page: Page) -> str:
    assert node.axis is not None
    axis = node.axis - page.rank(node.args[0])
    return f"{page.of(node.args[0], ATOM)}.sum(axis={axis}, keepdims=True)"


def sum_to_numpy(node: Op, page: Page) -> str:
    x, like = node.args
    rank, own = page.rank(x), page.rank(like)
    total = f"sum_to({page.of(x)}, {raised(like, page, SUM, rank, 0)})"
    if own in (1, rank):
        return total
    return f"{total}[..., {'0, ' * (rank - own)}{', '.join(':' * own)}]"


def pattern(template: str, level: int = SUM) -> Printer:
    """A printer that puts the operands into a template."""
    return lambda node, page: template.format(*(page.of(arg, level) for arg in node.args))


# --- evaluation ----------------------------------------------------------------------------


def aligned(keep: int) -> Callable[[Evaluation, Op], Any]:
    """Operands brought to one number of declared axes."""

    def evaluated(e: Evaluation, node: Op) -> Any:
        rank = max(len(e.axes(argument)) for argument in node.args)
        return e.ask(node.name, *(e.lifted(argument, rank, keep) for argument in node.args))

    return evaluated


def arithmetic(e: Evaluation, node: Op) -> Any:
    """Tensor ∘ tensor, tensor ∘ scalar or scalar ∘ tensor, for the four operations."""
    left, right = node.args
    if not (e.is_scalar(left) or e.is_scalar(right)):
        return aligned(0)(e, node)
    x, s = (right, left) if e.is_scalar(left) else (left, right)
    if node.name == "multiply":
        return e.ask("scale", e.value(x), e.scalar(s))
    if node.name == "divide":
        return e.ask("scale", e.value(x), e.reciprocal(s))
    if node.name == "add":
        return e.ask("shift", e.value(x), e.scalar(s))
    if x is left:
        return e.ask("shift", e.value(x), e.scalar(Op("negate", (s,))))
    return e.ask("shift", e.ask("negate", e.value(x)), e.scalar(s))


def masked(e: Evaluation, node: Op) -> Any:
    x, *masks = node.args
    rank = len(e.axes(x))
    assert node.axis is not None
    where = e.lifted(masks[0], rank) if masks else None
    return e.ask(node.name, e.value(x), node.axis - rank, where)


def of_axis_0(e: Evaluation, node: Op) -> Any:
    x, count = node.args
    return e.ask(node.name, e.value(x), e.size(count), -len(e.axes(x)))


def sum_to(e: Evaluation, node: Op) -> Any:
    """Batch axes are those that a declaration leaves out, so `like` is brought to the rank of x."""
    x, like = node.args
    rank, own = len(e.axes(x)), len(e.axes(like))
    total = e.ask(node.name, e.value(x), e.lifted(like, max(rank, own)))
    return total if own >= rank else e.ask("drop", total, -own, rank - own)


# --- reverse rules -------------------------------------------------------------------------


def turned(node: Expr) -> Expr:
    """The transpose, with transpositions moved to the factors of a product."""
    if isinstance(node, Op) and node.name == "transpose":
        return node.args[0]
    if isinstance(node, Op) and node.name == "matmul":
        left, right = node.args
        return Op("matmul", (turned(right), turned(left)))
    return Op("transpose", (node,))


def back_matmul(b: Backward) -> Parts:
    left, right = b.node.args
    yield left, Op("matmul", (b.given, turned(right)))
    yield right, Op("matmul", (turned(left), b.given))


def back_factor(b: Backward) -> Parts:
    left, right = b.node.args
    yield left, Op("multiply", (b.given, right))
    yield right, Op("multiply", (b.given, left))


def back_merge(b: Backward) -> Parts:
    """Into the number of heads that the parts of what is merged were split into."""
    (whole,) = b.node.args
    for part in walk(whole):
        if isinstance(part, Op) and part.name == "split":
            yield whole, Op("split", (b.given, part.args[1]))
            return
    raise SpecError("what is merged was not split")


def back_softmax(b: Backward) -> Parts:
    mean = Op("sum", (b.terms(),), b.node.axis)
    yield b.node.args[0], Op("multiply", (b.own, Op("subtract", (b.given, mean))))


def back_sigmoid(b: Backward) -> Parts:
    """σ' = σ(1 − σ)"""
    slope = Op("multiply", (b.own, Op("subtract", (ONE, b.own))))
    yield b.node.args[0], Op("multiply", (b.given, slope))


def back_tanh(b: Backward) -> Parts:
    """tanh' = 1 − tanh²"""
    slope = Op("subtract", (ONE, Op("multiply", (b.own, b.own))))
    yield b.node.args[0], Op("multiply", (b.given, slope))


def like_argument(name: str) -> Callable[[Backward], Parts]:
    """The operation `name` of the cotangent, shaped like the first operand."""

    def parts(b: Backward) -> Parts:
        x, *others = b.node.args
        yield x, Op(name, (b.given, *(others if name == "scatter_add" else ()), x))

    return parts


def first_only(make: Callable[[Backward], Expr]) -> Callable[[Backward], Parts]:
    def parts(b: Backward) -> Parts:
        yield b.node.args[0], make(b)

    return parts


def both(right: Callable[[Expr], Expr]) -> Callable[[Backward], Parts]:
    def parts(b: Backward) -> Parts:
        yield b.node.args[0], b.given
        yield b.node.args[1], right(b.given)

    return parts
