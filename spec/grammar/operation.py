"""What an operation of the grammar is: one definition that every interpretation takes its part of.

Operands, the axes of the result, printers, the reverse rule and what powers of two do to it are
data of an `Operation`; the definitions themselves are `operations`. How values are
computed is said by the algebras (`algebra`), one method for each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from qkvac.spec.grammar.syntax import Expr, Op, SpecError

Axes = tuple[Expr, ...]

SUM, PRODUCT, UNARY, ATOM = range(4)
"""How tightly an expression binds."""

OperandKind = Literal["tensor", "scalar", "mask", "index", "any"]
Medium = Literal["text", "latex", "mathml", "numpy"]
Degree = Literal["product", "sum", "same", "none"]
"""How degrees of operands combine: added; equal, and kept; that of the first operand; all 0."""


class Page(Protocol):
    """What a printer writes on: one medium, in which expressions are bracketed as needed."""

    def of(self, node: Expr, level: int = SUM) -> str:
        """`node`, in brackets if it binds less tightly than `level`."""

    def is_scalar(self, node: Expr) -> bool:
        """Whether the expression is a number, not a tensor."""

    def rank(self, node: Expr) -> int:
        """Number of declared axes."""


class Evaluation(Protocol):
    """What evaluates a program over an algebra, as an operation sees it."""

    def value(self, node: Expr) -> Any:
        """The algebra's value of a tensor-valued expression."""

    def axes(self, node: Expr) -> Axes:
        """Its declared axes."""

    def is_scalar(self, node: Expr) -> bool:
        """Whether the expression is a number, not a tensor."""

    def scalar(self, node: Expr) -> Any:
        """The exact number that a scalar expression stands for."""

    def reciprocal(self, node: Expr) -> Any:
        """1 over that number."""

    def size(self, node: Expr) -> Any:
        """That number as the size of an axis."""

    def lifted(self, node: Expr, rank: int, keep: int = 0) -> Any:
        """The value with `rank` declared axes; new ones stand before the last `keep` (0: all)."""

    def ask(self, method: str, *operands: Any) -> Any:
        """The algebra's operation; raises SpecError if it has none of this name."""


@dataclass(frozen=True)
class Backward:
    """A node on the way back: its cotangent, its own value, and what a softmax sums along rows."""

    node: Op
    given: Expr
    own: Expr
    """The result; a tensor, if the operation is nonlinear."""
    terms: Callable[[], Expr]


Printer = Callable[[Op, Page], str]
Reverse = Callable[[Backward], Iterable[tuple[Expr, Expr]]]


@dataclass(frozen=True)
class Operand:
    """A parameter of an operation: what it takes, and with how many declared axes at least."""

    name: str
    kind: OperandKind = "tensor"
    least: int = 1
    optional: bool = False


def _first(node: Op, axes: Sequence[Axes]) -> Axes:
    return axes[0]


def _none(node: Op, axes: Sequence[Axes]) -> Axes:
    return ()


def default_evaluate(e: Evaluation, node: Op) -> Any:
    """The method of the operation's name, with sizes for scalars and a negative number for axis."""
    operands = [e.size(arg) if e.is_scalar(arg) else e.value(arg) for arg in node.args]
    if node.axis is not None:
        operands.insert(1, node.axis - len(e.axes(node.args[0])))
    return e.ask(node.name, *operands)


def call(node: Op, page: Page) -> str:
    """f(x, axis=1, where=m), in the grammar's own syntax."""
    parts = [page.of(argument) for argument in node.args]
    if node.axis is not None:
        parts.insert(1, f"axis={node.axis}")
        parts[2:] = [f"where={part}" for part in parts[2:]]
    return f"{node.name}({', '.join(parts)})"


def latex_call(node: Op, page: Page) -> str:
    parts = [page.of(argument) for argument in node.args]
    name = node.name.replace("_", r"\_")
    if node.axis is None:
        return rf"\mathrm{{{name}}}({', '.join(parts)})"
    kept = rf",\; {parts[1]}" if len(parts) > 1 else ""
    return rf"\mathrm{{{name}}}_{{{node.axis}}}\left({parts[0]}{kept}\right)"


def mathml_sign(sign: str) -> str:
    return f"<mo>{sign}</mo>"


def mathml_brackets(inner: str) -> str:
    """Brackets grow with fractions alone; fonts make those around a single line too tall."""
    grow = "" if "<mfrac>" in inner else ' stretchy="false"'
    return f"<mo{grow}>(</mo>{inner}<mo{grow}>)</mo>"


def mathml_call(node: Op, page: Page) -> str:
    """A function; the axis is its index, and what a softmax keeps stands after a bar."""
    name = f"<mi>{node.name.replace('_', ' ')}</mi>"
    if node.axis is not None:
        name = f"<msub>{name}<mn>{node.axis}</mn></msub>"
    between = mathml_sign("|" if node.axis is not None else ",")
    inner = between.join(page.of(argument) for argument in node.args)
    return f"<mrow>{name}{mathml_sign(chr(0x2061))}{mathml_brackets(inner)}</mrow>"


def numpy_call(node: Op, page: Page) -> str:
    """A function of the operation's name (see `Operation.helper`), with a negative axis."""
    parts = [page.of(argument) for argument in node.args]
    if node.axis is not None:
        parts.insert(1, str(node.axis - page.rank(node.args[0])))
    return f"{node.name}({', '.join(parts)})"


@dataclass(frozen=True)
class Operation:
    """One operation of the grammar."""

    name: str
    operands: tuple[Operand, ...]
    result: Callable[[Op, Sequence[Axes]], Axes] = _first
    """The declared axes of the result, from those of the operands; none for a scalar."""
    ordered: Callable[[Op, Sequence[Axes]], Axes] = _none
    """The axes, of operands or of the result, in which it goes by the place of an entry."""
    has_axis: bool = False
    """Whether it takes `axis`, which counts the declared axes of its first operand."""
    is_mask: bool = False
    """Whether the result is a mask."""
    is_product: bool = False
    """Whether it multiplies tensors: the result may be out of range where no operand is."""
    is_nonlinear: bool = False
    """Whether the reverse rule is stated in terms of the result."""
    level: int = ATOM
    """How tightly it binds where it is printed."""
    levels: Mapping[Medium, int] = field(default_factory=dict)
    """The same in media where it is another."""
    text: Printer = call
    latex: Printer = latex_call
    mathml: Printer = mathml_call
    numpy: Printer = numpy_call
    helper: str = ""
    """Source of the NumPy function that `numpy` calls, where NumPy itself has none."""
    evaluate: Callable[[Evaluation, Op], Any] = default_evaluate
    exact: Callable[..., Any] | None = None
    """The operation on exact scalars; None if it is not one."""
    reverse: Reverse | None = None
    """Each operand with its cotangent (scalars may be among them); None if there is no rule."""
    powers: Degree = "same"
    """What becomes of powers of two: operands of degree k are multiplied by 2**k."""
    signs: Degree = "same"
    """What becomes of signs, in the same way with −1 for 2."""

    def printer(self, medium: Medium) -> Printer:
        """What prints it in a medium."""
        printers = {
            "text": self.text,
            "latex": self.latex,
            "mathml": self.mathml,
            "numpy": self.numpy,
        }
        return printers[medium]

    def binds(self, medium: Medium) -> int:
        """How tightly it binds there: fractions and functions of NumPy's need no brackets."""
        return self.levels.get(medium, self.level)

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(operand.name for operand in self.operands if not operand.optional)

    def axes(self, node: Op, operands: Sequence[Axes]) -> Axes:
        """Declared axes of the result; raises SpecError where the operands do not suit."""
        for place, (operand, axes) in enumerate(zip(self.operands, operands, strict=False)):
            if operand.kind == "any":
                continue
            scalar = operand.kind == "scalar"
            if scalar != (len(axes) == 0):
                wanted = "a scalar" if scalar else "a tensor"
                raise SpecError(f"{self.name} takes {wanted} as operand {place + 1}")
            if not scalar and len(axes) < operand.least:
                needed = f"needs at least {operand.least} declared axes, got {len(axes)}"
                raise SpecError(f"{self.name} {needed}")
        if self.has_axis and (node.axis is None or not 0 <= node.axis < len(operands[0])):
            over = f"over axis {node.axis} of a tensor with {len(operands[0])} declared axes"
            raise SpecError(f"{self.name} {over}")
        return self.result(node, operands)
