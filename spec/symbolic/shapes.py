"""The shape interpretation: the contract of every tensor, symbolic and for given sizes.

Symbolically an axis is a monomial such as `c/h`, so that splitting and merging heads cancels;
with sizes it is a number. Errors name the axis, what was expected and what was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from qkvac.spec.grammar import equations
from qkvac.spec.grammar.equations import Expr, Number, Op, Program, Ref, Tensor
from qkvac.spec.grammar.scalar import Scalar


class ShapeError(ValueError):
    """A tensor whose shape contradicts its declaration or its operands."""


@dataclass(frozen=True)
class Axis:
    """coefficient · Π symbol**power; a plain size has no symbols."""

    coefficient: Fraction
    powers: tuple[tuple[str, Fraction], ...] = ()

    @classmethod
    def symbol(cls, name: str) -> Axis:
        return cls(Fraction(1), ((name, Fraction(1)),))

    @classmethod
    def size(cls, value: int | float | Fraction | Scalar) -> Axis:
        """A plain number; an irrational scalar, which no axis has, is a nameless 1."""
        if isinstance(value, Scalar):
            return cls(value.factor if value.radicand == 1 else Fraction(1))
        return cls(Fraction(value))

    def __mul__(self, other: Axis) -> Axis:
        powers = dict(self.powers)
        for name, power in other.powers:
            powers[name] = powers.get(name, Fraction(0)) + power
        kept = tuple(sorted((name, power) for name, power in powers.items() if power))
        return Axis(self.coefficient * other.coefficient, kept)

    def __truediv__(self, other: Axis) -> Axis:
        if not other.coefficient:
            raise ShapeError(f"{self} divided by an axis of size 0")
        inverse = tuple((name, -power) for name, power in other.powers)
        return self * Axis(1 / other.coefficient, inverse)

    def __int__(self) -> int:
        """The size; raises ShapeError where it is symbolic or no whole number ≥ 0."""
        if self.powers or self.coefficient.denominator != 1 or self.coefficient < 0:
            raise ShapeError(f"{self} is not an axis size")
        return int(self.coefficient)

    def __str__(self) -> str:
        factors = [_power(name, power) for name, power in self.powers if power > 0]
        below = [_power(name, -power) for name, power in self.powers if power < 0]
        if self.coefficient != 1 or not factors:
            factors.insert(0, str(self.coefficient))
        return "·".join(factors) + "".join(f"/{name}" for name in below)


def _power(name: str, power: Fraction) -> str:
    return name if power == 1 else f"{name}^{power}"


ONE = Axis.size(1)


@dataclass(frozen=True)
class Shape:
    """All axes of a tensor, batch axes included."""

    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[Axis, ...]:
        return self.axes

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.axes))}]"


def fold(expression: Expr, sizes: Mapping[str, Any]) -> Axis:
    """A scalar expression as a monomial; roots and sums, which no axis has, are irrelevant."""
    if isinstance(expression, Ref):
        value = sizes[expression.name]
        return value if isinstance(value, Axis) else Axis.size(value)
    if isinstance(expression, Number):
        return Axis.size(expression.value)
    args = [fold(argument, sizes) for argument in expression.args]
    if expression.name == "multiply":
        return args[0] * args[1]
    if expression.name == "divide":
        return args[0] / args[1]
    return ONE


class Shapes:
    """The algebra whose values are shapes; raises ShapeError where operands do not fit."""

    def report(self, name: str, value: Shape) -> Shape:
        return value

    def matmul(self, x: Shape, y: Shape) -> Shape:
        (*lead_x, rows, inner), (*lead_y, inner_y, columns) = x.axes, y.axes
        if inner != inner_y:
            raise ShapeError(f"{x} @ {y}: the inner axis is {inner} left, {inner_y} right")
        return Shape((*_broadcast(tuple(lead_x), tuple(lead_y), "@"), rows, columns))

    def transpose(self, x: Shape) -> Shape:
        *lead, rows, columns = x.axes
        return Shape((*lead, columns, rows))

    def _elementwise(self, x: Shape, y: Shape) -> Shape:
        return Shape(_broadcast(x.axes, y.axes, "elementwise"))

    add = subtract = multiply = conjunction = _elementwise

    def _same(self, x: Shape, *_: object) -> Shape:
        return x

    negate = scale = shift = finite = sigmoid = tanh = _same

    def softmax(self, x: Shape, axis: int, where: Shape | None) -> Shape:
        if where is not None and self._elementwise(x, where) != x:
            raise ShapeError(f"a mask {where} does not broadcast to {x}")
        return x

    def sum(self, x: Shape, axis: int) -> Shape:
        axes = list(x.axes)
        axes[axis] = ONE
        return Shape(tuple(axes))

    def sum_to(self, x: Shape, like: Shape) -> Shape:
        fits = len(like.axes) <= len(x.axes)
        for place in range(-min(len(like.axes), len(x.axes)), 0):
            have, want = x.axes[place], like.axes[place]
            # Heads that share one of `like` are consecutive, as in `repeat`.
            shared = place == -3 and _divides(want, have)
            fits = fits and (want in (have, ONE) or shared)
        if not fits:
            raise ShapeError(f"{like} does not broadcast to {x}")
        return like

    def pad(self, x: Shape, like: Shape) -> Shape:
        if x.axes[-len(like.axes) + 1 :] != like.axes[1:]:
            raise ShapeError(f"{x} cannot be padded to {like}")
        return like

    def scatter_add(self, x: Shape, index: Shape, like: Shape) -> Shape:
        if x.axes != (*index.axes, *like.axes[-1:]):
            raise ShapeError(f"rows {x} do not belong to indices {index} of a table {like}")
        return like

    def causal(self, length: Axis, keys: Axis) -> Shape:
        return Shape((length, keys))

    def split(self, x: Shape, heads: Axis) -> Shape:
        *lead, rows, width = x.axes
        part = width / heads
        if not part.powers and part.coefficient.denominator != 1:
            raise ShapeError(f"width {width} does not split into {heads} heads")
        return Shape((*lead, heads, rows, part))

    def merge(self, x: Shape) -> Shape:
        *lead, heads, rows, width = x.axes
        return Shape((*lead, rows, heads * width))

    def repeat(self, x: Shape, heads: Axis) -> Shape:
        *lead, group, rows, width = x.axes
        if not _divides(group, heads):
            raise ShapeError(f"{group} key/value heads do not divide {heads} query heads")
        return Shape((*lead, heads, rows, width))

    def take(self, table: Shape, index: Shape) -> Shape:
        return Shape((*index.axes, *table.axes[-1:]))

    def first(self, x: Shape, count: Axis, axis: int) -> Shape:
        axes = list(x.axes)
        have = axes[axis]
        if not have.powers and not count.powers and have.coefficient < count.coefficient:
            raise ShapeError(f"the first {count} rows of a table with only {have}")
        axes[axis] = count
        return Shape(tuple(axes))

    def lift(self, x: Shape, axis: int, count: int) -> Shape:
        at = len(x.axes) + axis
        return Shape((*x.axes[:at], *(ONE,) * count, *x.axes[at:]))

    def drop(self, x: Shape, axis: int, count: int) -> Shape:
        at = len(x.axes) + axis
        return Shape((*x.axes[: at - count], *x.axes[at:]))


def _divides(group: Axis, heads: Axis) -> bool:
    """Whether `heads` can be a multiple of `group`; of symbols that is not known."""
    ratio = heads / group if group.coefficient else ONE
    return bool(ratio.powers) or ratio.coefficient.denominator == 1


def _broadcast(x: tuple[Axis, ...], y: tuple[Axis, ...], operation: str) -> tuple[Axis, ...]:
    longer, shorter = (x, y) if len(x) >= len(y) else (y, x)
    offset = len(longer) - len(shorter)
    axes = list(longer[:offset])
    for left, right in zip(longer[offset:], shorter, strict=True):
        if left != right and ONE not in (left, right):
            shown = f"{Shape(x)} and {Shape(y)}"
            raise ShapeError(f"{operation}: {shown} do not broadcast, {left} against {right}")
        axes.append(right if left == ONE else left)
    return tuple(axes)


def check(
    program: Program,
    sizes: Mapping[str, Any] | None = None,
    batch: tuple[Any, ...] = (),
    algebra: Shapes | None = None,
    given: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Shape]:
    """The shape of every tensor, having shown that each equation yields what it declares.

    Without `sizes` the axes stay symbolic. `batch` are leading axes (names or sizes) that the
    real inputs with at least 2 declared axes carry, as a batch of X would; others broadcast.
    `given` are the shapes that inputs really have, where `batch` does not say it.
    An `algebra` of one's own may know more operations. Raises ShapeError naming the equation.
    """
    algebra = algebra or Shapes()
    names = (*program.axis_names, *program.parameters)
    bound = {name: Axis.symbol(name) if sizes is None else Axis.size(sizes[name]) for name in names}
    lead = tuple(Axis.symbol(b) if isinstance(b, str) else Axis.size(b) for b in batch)
    declared = {
        name: tuple(fold(axis, bound) for axis in tensor.axes)
        for name, tensor in program.tensors.items()
    }
    inputs = {
        tensor.name: Shape((*(lead if _carries_batch(tensor) else ()), *declared[tensor.name]))
        for tensor in program.inputs
    }
    inputs |= {
        name: Shape(tuple(map(Axis.size, sizes_of))) for name, sizes_of in (given or {}).items()
    }
    try:
        results: dict[str, Shape] = equations.evaluate(program, algebra, inputs, bound, fold=fold)
    except ShapeError as error:
        raise ShapeError(f"{_first_wrong(program, inputs, bound, algebra)}: {error}") from None
    for name, shape in results.items():
        own, expression = declared[name], program.equation(name).expression
        if given and isinstance(expression, Op) and expression.name == "sum_to":
            # What is summed to an input has the shape that the input really has.
            continue
        if shape.axes[len(shape.axes) - len(own) :] != own:
            text = program.equation(name).text
            raise ShapeError(f"{text}: declared {Shape(own)}, the right-hand side is {shape}")
    return inputs | results


def _carries_batch(tensor: Tensor) -> bool:
    return tensor.kind == "index" or (tensor.kind == "real" and tensor.rank >= 2)


def _first_wrong(
    program: Program, inputs: Mapping[str, Shape], sizes: Mapping[str, Any], algebra: Shapes
) -> str:
    for count, equation in enumerate(program.equations, 1):
        prefix = Program(program.inputs, program.parameters, program.equations[:count])
        try:
            equations.evaluate(prefix, algebra, inputs, sizes, fold=fold)
        except ShapeError:
            return equation.text
    raise AssertionError("called although every equation fits")


def bind(program: Program, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Axis sizes from the shapes of the inputs; leading batch axes are skipped.

    Raises ShapeError, naming tensor, axis, expected and got, where two inputs disagree.
    """
    sizes, source = dict[str, int](), dict[str, str]()
    for tensor in program.inputs:
        shape = shapes[tensor.name]
        if len(shape) < tensor.rank:
            raise ShapeError(f"{tensor.name} has {len(shape)} axes, expected {declaration(tensor)}")
        for axis, size in zip(tensor.axes, shape[len(shape) - tensor.rank :], strict=True):
            if isinstance(axis, Ref):
                known = sizes.setdefault(axis.name, size)
                source.setdefault(axis.name, tensor.name)
                if known != size:
                    raise ShapeError(
                        f"{declaration(tensor)}: axis {axis.name} is {size}, "
                        f"expected {known} as in {source[axis.name]}"
                    )
            elif isinstance(axis, Number) and axis.value != size:
                raise ShapeError(f"{declaration(tensor)}: got {size}, expected {axis.value}")
    return sizes


def contract(
    program: Program,
    sizes: Mapping[str, Any],
    batch: tuple[int, ...] = (),
    given: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, tuple[int, ...]]:
    """The concrete shape that every tensor must have; `batch` and `given` as in `check`."""
    checked = check(program, sizes, batch, given=given)
    return {name: tuple(int(axis) for axis in shape.axes) for name, shape in checked.items()}


def mismatch(tensor: Tensor, expected: tuple[int, ...], got: tuple[int, ...]) -> str | None:
    """What is wrong with a shape, in words that name the axis; None when it is right."""
    if expected == got:
        return None
    if len(expected) != len(got):
        return f"{tensor.name} has {len(got)} axes {got}, expected {len(expected)} {expected}"
    names = [""] * (len(expected) - tensor.rank) + [axis_text(axis) for axis in tensor.axes]
    wrong = [
        f"axis {i} ({name or 'batch'}) is {g}, expected {e}"
        for i, (name, e, g) in enumerate(zip(names, expected, got, strict=True))
        if e != g
    ]
    return f"{tensor.name}: " + "; ".join(wrong)


def declaration(tensor: Tensor) -> str:
    """The declaration as it stands in the text, `X[n, d]`."""
    return f"{tensor.name}[{', '.join(axis_text(axis) for axis in tensor.axes)}]"


def axis_text(axis: Expr) -> str:
    """An axis in a word, `c/h`."""
    if isinstance(axis, Op):
        left, right = (axis_text(argument) for argument in axis.args)
        return f"{left}{'·' if axis.name == 'multiply' else '/'}{right}"
    return axis.name if isinstance(axis, Ref) else str(axis.value)
