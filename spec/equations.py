"""The grammar of the equations, and their evaluation over an algebra.

A spec text is Python syntax restricted to what attention needs; `ast` parses it, and everything
outside the closed grammar is a SpecError that shows its line. The same parsed program is then
evaluated over algebras: objects with one method per operation, whose values may be shapes,
balls, error bounds or operation counts. Nothing about attention is written twice.

    X[n, d]                      an input and its trailing axes
    scale                        a scalar parameter
    Q[n, c] = X @ Wq             an equation and the shape contract of its result

Declared axes are the trailing ones; further leading axes are batch axes and broadcast.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np

from qkvac.spec.scalar import Scalar

Kind = Literal["real", "mask", "index"]


class SpecError(ValueError):
    """A spec text, or a case's claim, that is wrong in itself."""


@dataclass(frozen=True)
class Ref:
    """A tensor, an axis size or a scalar parameter, by name."""

    name: str


@dataclass(frozen=True)
class Number:
    value: Fraction


@dataclass(frozen=True)
class Op:
    """An operation of the grammar: `args` are expressions, `axis` counts declared axes."""

    name: str
    args: tuple[Expr, ...]
    axis: int | None = None


Expr = Ref | Number | Op


@dataclass(frozen=True)
class Tensor:
    """A declared tensor: `axes` are scalar expressions over axis names, outermost first."""

    name: str
    axes: tuple[Expr, ...]
    kind: Kind = "real"

    @property
    def rank(self) -> int:
        return len(self.axes)


@dataclass(frozen=True)
class Equation:
    target: Tensor
    expression: Expr
    text: str
    line: int

    @property
    def operands(self) -> tuple[str, ...]:
        """Names that the right-hand side refers to, in order of appearance."""
        nodes = walk(self.expression)
        return tuple(dict.fromkeys(node.name for node in nodes if isinstance(node, Ref)))


@dataclass(frozen=True)
class Program:
    """A parsed spec text."""

    inputs: tuple[Tensor, ...]
    parameters: tuple[str, ...]
    equations: tuple[Equation, ...]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every declared tensor by name: the inputs, then the targets."""
        targets = (equation.target for equation in self.equations)
        return {tensor.name: tensor for tensor in (*self.inputs, *targets)}

    @property
    def axis_names(self) -> tuple[str, ...]:
        axes = (axis for tensor in self.tensors.values() for axis in tensor.axes)
        return tuple(dict.fromkeys(n.name for a in axes for n in walk(a) if isinstance(n, Ref)))

    def equation(self, name: str) -> Equation:
        """The equation that defines `name`; raises KeyError for an input."""
        for equation in self.equations:
            if equation.target.name == name:
                return equation
        raise KeyError(name)

    def restricted(self, given: frozenset[str], wanted: str) -> Program:
        """The equations that compute `wanted` when the tensors in `given` are inputs.

        This is how clause L re-evaluates an equation on a backend's own operands.
        """
        needed, pending, inputs = set[str](), [wanted], dict[str, Tensor]()
        tensors, own = self.tensors, {tensor.name for tensor in self.inputs}
        while pending:
            name = pending.pop()
            if name in needed:
                continue
            needed.add(name)
            for operand in self.equation(name).operands:
                if operand in given or operand in own:
                    inputs[operand] = tensors[operand]
                elif operand in tensors:
                    pending.append(operand)
        return Program(
            tuple(tensor for name, tensor in tensors.items() if name in inputs),
            self.parameters,
            tuple(equation for equation in self.equations if equation.target.name in needed),
        )


def walk(expression: Expr) -> Iterator[Expr]:
    """`expression` and everything below it, depth first."""
    yield expression
    if isinstance(expression, Op):
        for argument in expression.args:
            yield from walk(argument)


# --- parsing -------------------------------------------------------------------------------

BINARY: Final = {
    ast.MatMult: "matmul",
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.BitAnd: "conjunction",
}


@dataclass(frozen=True)
class Signature:
    """Parameters of a function of the grammar; those after `required` may be left out."""

    parameters: tuple[str, ...]
    required: int
    has_axis: bool = False


FUNCTIONS: Final[Mapping[str, Signature]] = {
    "sqrt": Signature(("x",), 1),
    "softmax": Signature(("x", "where"), 1, has_axis=True),
    "causal": Signature(("L", "S"), 2),
    "finite": Signature(("mask",), 1),
    "split": Signature(("x", "h"), 2),
    "merge": Signature(("x",), 1),
    "repeat": Signature(("x", "h"), 2),
    "take": Signature(("table", "index"), 2),
    "head": Signature(("x", "n"), 2),
    "sum": Signature(("x",), 1, has_axis=True),
    "sum_to": Signature(("x", "like"), 2),
    "scatter_add": Signature(("x", "index", "like"), 3),
    "pad": Signature(("x", "like"), 2),
}


def parse(text: str) -> Program:
    """The program that `text` declares; raises SpecError, showing the line, if it is malformed."""
    return _Parser(textwrap.dedent(text).strip("\n")).program()


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        try:
            self.module = ast.parse(text)
        except SyntaxError as error:
            message = f"not an equation: {error.msg}"
            raise self.error(error.lineno or 1, error.offset, message) from None
        self.text = text

    def error(self, line: int, column: int | None, message: str) -> SpecError:
        shown = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        caret = f"\n    {' ' * max((column or 1) - 1, 0)}^" if column is not None else ""
        return SpecError(f"spec line {line}: {message}\n    {shown}{caret}")

    def at(self, node: ast.expr | ast.stmt, message: str) -> SpecError:
        # ast counts UTF-8 bytes, a reader counts characters.
        prefix = self.lines[node.lineno - 1].encode()[: node.col_offset].decode()
        return self.error(node.lineno, len(prefix) + 1, message)

    def program(self) -> Program:
        inputs, parameters, equations = list[Tensor](), list[str](), list[Equation]()
        lines = dict[str, int]()
        for node in self.module.body:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Name):
                name = node.value.id
                parameters.append(name)
            elif isinstance(node, ast.Expr):
                tensor = self.declaration(node.value)
                name = tensor.name
                inputs.append(tensor)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                tensor = self.declaration(node.targets[0])
                name = tensor.name
                text = ast.get_source_segment(self.text, node) or ""
                equations.append(Equation(tensor, self.expression(node.value), text, node.lineno))
            else:
                raise self.at(node, "expected `X[n, d]`, `scale` or `Q[n, c] = …`")
            if name in lines:
                raise self.at(node, f"{name} is declared twice")
            lines[name] = node.lineno
        if not equations:
            raise self.error(1, None, "the text declares no equation")
        program = Program(tuple(inputs), tuple(parameters), tuple(equations))
        clash = [name for name in program.axis_names if name in program.tensors]
        if clash:
            problem = f"{clash[0]} names both a tensor and an axis"
            raise self.error(lines[clash[0]], None, problem)
        kinds = self.check(program)
        typed = (replace(tensor, kind=kinds.get(tensor.name, "real")) for tensor in program.inputs)
        return replace(program, inputs=tuple(typed))

    def declaration(self, node: ast.expr) -> Tensor:
        if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)):
            raise self.at(node, "a tensor is declared with its axes, as in `X[n, d]`")
        axes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not axes:
            raise self.at(node, "a tensor has at least one axis")
        return Tensor(node.value.id, tuple(self.axis(axis) for axis in axes))

    def axis(self, node: ast.expr) -> Expr:
        expression = self.expression(node)
        for part in walk(expression):
            if isinstance(part, Op) and part.name not in ("multiply", "divide"):
                raise self.at(node, "an axis is a name, a number, or a product or quotient of such")
        return expression

    def expression(self, node: ast.expr) -> Expr:
        if isinstance(node, ast.Name):
            return Ref(node.id)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            if isinstance(node.value, float) and not np.isfinite(node.value):
                raise self.at(node, "a number must be finite")
            if isinstance(node.value, int):
                return Number(Fraction(node.value))
            # The decimal as written: 0.1 is a tenth.
            literal = ast.get_source_segment(self.text, node) or ""
            return Number(Fraction(literal.replace("_", "")))
        if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
            operands = (self.expression(node.left), self.expression(node.right))
            return Op(BINARY[type(node.op)], operands)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return Op("negate", (self.expression(node.operand),))
        if isinstance(node, ast.Attribute) and node.attr == "T":
            return Op("transpose", (self.expression(node.value),))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self.call(node, node.func.id)
        raise self.at(node, f"{ast.unparse(node)!r} is outside the grammar")

    def call(self, node: ast.Call, name: str) -> Op:
        signature = FUNCTIONS.get(name)
        if signature is None:
            known = ", ".join(FUNCTIONS)
            raise self.at(node, f"unknown function {name!r}; the grammar has {known}")
        # `axis` stands second wherever it may be given by position.
        order = list(signature.parameters)
        if signature.has_axis:
            order.insert(1, "axis")
        given = dict[str, ast.expr]()
        for position, argument in enumerate(node.args):
            if isinstance(argument, ast.Starred) or position >= len(order):
                raise self.at(argument, f"{name} takes ({', '.join(order)})")
            given[order[position]] = argument
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg not in order or keyword.arg in given:
                raise self.at(keyword.value, f"{name} takes ({', '.join(order)}), each once")
            given[keyword.arg] = keyword.value
        missing = [p for p in signature.parameters[: signature.required] if p not in given]
        if signature.has_axis and "axis" not in given:
            missing.append("axis")
        if missing:
            raise self.at(node, f"{name} needs {', '.join(missing)}")
        axis = None
        if signature.has_axis:
            value = given["axis"]
            if not (isinstance(value, ast.Constant) and type(value.value) is int):
                raise self.at(value, "axis is a whole number that counts declared axes")
            axis = value.value
        args = tuple(self.expression(given[p]) for p in signature.parameters if p in given)
        return Op(name, args, axis)

    def check(self, program: Program) -> dict[str, Kind]:
        """Names known and used in order, ranks consistent; returns the kind of each input."""
        scalars = set(program.axis_names) | set(program.parameters)
        ranks = {tensor.name: tensor.rank for tensor in program.inputs}
        kinds = dict[str, Kind]()
        for equation in program.equations:
            try:
                rank = rank_of(equation.expression, ranks, scalars)
                _infer_kinds(equation.expression, None, kinds)
            except SpecError as error:
                raise self.error(equation.line, None, str(error)) from None
            if rank != equation.target.rank:
                target = equation.target
                problem = f"the right-hand side has {rank} axes, {target.name} has {target.rank}"
                raise self.error(equation.line, None, problem)
            ranks[equation.target.name] = rank
        return kinds


def _infer_kinds(expression: Expr, kind: Kind | None, kinds: dict[str, Kind]) -> None:
    """Record what each name is used as: a mask in `where=` and `&`, an index in take."""
    if isinstance(expression, Ref):
        used: Kind = kind or "real"
        if kinds.setdefault(expression.name, used) != used:
            before = kinds[expression.name]
            raise SpecError(f"{expression.name} is used both as {before} and as {used}")
    elif isinstance(expression, Op):
        if _is_mask(expression) and kind != "mask":
            raise SpecError(f"{expression.name} is a mask, which only where= and & take")
        for position, argument in enumerate(expression.args):
            below: Kind | None = None
            if expression.name == "conjunction" or (expression.name == "softmax" and position == 1):
                below = "mask"
            elif expression.name in ("take", "scatter_add") and position == 1:
                below = "index"
                if not isinstance(argument, Ref):
                    raise SpecError(f"the index of {expression.name} is a name")
            if below == "mask" and not _is_mask(argument):
                raise SpecError("where= and & take a mask: a name, causal(…), finite(…) or m & m")
            _infer_kinds(argument, below, kinds)


def _is_mask(expression: Expr) -> bool:
    if isinstance(expression, Op):
        return expression.name in ("causal", "finite", "conjunction")
    return isinstance(expression, Ref)


_ELEMENTWISE: Final = ("add", "subtract", "multiply", "conjunction")


def is_scalar(expression: Expr, tensors: Mapping[str, Any]) -> bool:
    """Whether the expression is built from axis names, parameters and numbers alone."""
    if isinstance(expression, Ref):
        return expression.name not in tensors
    if isinstance(expression, Number):
        return True
    return expression.name != "causal" and all(is_scalar(arg, tensors) for arg in expression.args)


def _takes_scalars(expression: Op) -> list[bool]:
    """For each operand of a function, whether it is a scalar."""
    if expression.name in ("sqrt", "causal"):
        return [True] * len(expression.args)
    if expression.name in ("split", "repeat", "head"):
        return [False, True]
    return [False] * len(expression.args)


def rank_of(expression: Expr, ranks: Mapping[str, int], scalars: set[str] | frozenset[str]) -> int:
    """Number of declared axes of an expression (0 for a scalar); raises SpecError if ill-formed."""
    if isinstance(expression, Ref):
        if expression.name not in ranks and expression.name not in scalars:
            raise SpecError(f"{expression.name} is used before it is defined")
        return ranks.get(expression.name, 0)
    if isinstance(expression, Number):
        return 0
    name, args = expression.name, [rank_of(arg, ranks, scalars) for arg in expression.args]
    first = args[0]
    if name in ("add", "subtract", "multiply"):
        return max(args)
    if name == "divide":
        if args[1]:
            raise SpecError("only a scalar may stand below the bar of /")
        return first
    if name == "negate":
        return first
    for position, (rank, scalar) in enumerate(zip(args, _takes_scalars(expression), strict=True)):
        if scalar != (rank == 0):
            wanted = "a scalar" if scalar else "a tensor"
            raise SpecError(f"{name} takes {wanted} as operand {position + 1}")
    if name == "sqrt":
        return 0
    if name == "causal":
        return 2
    if name == "conjunction":
        return max(args)
    if name in ("matmul", "transpose") and min(args) < 2:
        raise SpecError(f"{name} needs operands with at least 2 declared axes")
    if name in ("softmax", "sum"):
        axis = expression.axis
        if axis is None or not 0 <= axis < first:
            raise SpecError(f"{name} over axis {axis} of a tensor with {first} declared axes")
        if name == "softmax" and max(args) > first:
            raise SpecError(f"a mask with {args[1]} declared axes for scores with {first}")
    if name == "take" and first != 2:
        raise SpecError(f"take needs a table with 2 declared axes, got {first}")
    needed = {"split": 2, "merge": 3, "repeat": 3}.get(name, 0)
    if first < needed:
        raise SpecError(f"{name} needs at least {needed} declared axes, got {first}")
    if name == "matmul":
        return max(args)
    if name == "split":
        return first + 1
    if name == "merge":
        return first - 1
    if name == "take":
        return args[1] + 1
    if name in ("sum_to", "scatter_add", "pad"):
        return args[-1]
    return first


# --- evaluation ----------------------------------------------------------------------------


class Masks:
    """What all numeric algebras share: a mask is a plain boolean array, True keeps."""

    def causal(self, length: int, keys: int, alignment: str = "top-left") -> np.ndarray:
        """[L, S]: query i keeps key j iff j ≤ i, or j ≤ i + S − L when bottom-right."""
        offset = keys - length if alignment == "bottom-right" else 0
        return np.tri(length, keys, offset, dtype=bool)

    def finite(self, mask: Any) -> np.ndarray:
        """Where an additive mask is not −inf; `mask` is the algebra's value of an exact input."""
        return np.asarray(np.isfinite(self.center(mask)))

    def conjunction(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return np.asarray(left & right)

    def center(self, value: Any) -> np.ndarray:
        """A float64 array that shows which entries of `value` are finite."""
        raise NotImplementedError


Fold = Callable[[Expr, Mapping[str, Any]], Any]


def fold(expression: Expr, sizes: Mapping[str, Any]) -> Scalar:
    """The exact value of a scalar expression; `sizes` binds axis names and parameters."""
    if isinstance(expression, Ref):
        return Scalar.of(sizes[expression.name])
    if isinstance(expression, Number):
        return Scalar(expression.value)
    args = [fold(arg, sizes) for arg in expression.args]
    if expression.name == "sqrt":
        return args[0].sqrt()
    if expression.name == "negate":
        return -args[0]
    if expression.name == "multiply":
        return args[0] * args[1]
    if expression.name == "divide":
        return args[0] / args[1]
    if expression.name == "add":
        return args[0] + args[1]
    if expression.name == "subtract":
        return args[0] - args[1]
    raise SpecError(f"{expression.name} is not an operation on scalars")


def evaluate(
    program: Program,
    algebra: Any,
    inputs: Mapping[str, Any],
    sizes: Mapping[str, Any],
    *,
    fold: Fold = fold,
) -> dict[str, Any]:
    """The algebra's value of every equation's target, in the order of the text.

    `inputs` binds the declared inputs to values of the algebra, `sizes` the axis names and scalar
    parameters to numbers. Axes are handed to the algebra as negative numbers, so that leading
    batch axes need no care there.
    """
    values: dict[str, Any] = {tensor.name: inputs[tensor.name] for tensor in program.inputs}
    ranks = {tensor.name: tensor.rank for tensor in program.inputs}
    results = dict[str, Any]()
    for equation in program.equations:
        evaluator = _Evaluator(algebra, values, ranks, sizes, fold)
        value, _ = evaluator.tensor(equation.expression)
        name = equation.target.name
        values[name] = results[name] = algebra.report(name, value)
        ranks[name] = equation.target.rank
    return results


@dataclass(frozen=True)
class _Evaluator:
    algebra: Any
    values: Mapping[str, Any]
    ranks: Mapping[str, int]
    sizes: Mapping[str, Any]
    fold: Fold

    def tensor(self, expression: Expr) -> tuple[Any, int]:
        """Value and number of declared axes of a tensor-valued expression."""
        if isinstance(expression, Ref):
            return self.values[expression.name], self.ranks[expression.name]
        assert isinstance(expression, Op), "a number is a scalar"
        name, args, algebra = expression.name, expression.args, self.algebra
        rank = rank_of(expression, self.ranks, frozenset(self.sizes))
        if name in ("multiply", "divide", "add", "subtract"):
            scalar = [is_scalar(arg, self.values) for arg in args]
            if any(scalar):
                return self.with_scalar(name, args, scalar), rank
        if name in _ELEMENTWISE:
            return getattr(algebra, name)(*self.aligned(args, keep=0)), rank
        if name == "matmul":
            return algebra.matmul(*self.aligned(args, keep=2)), rank
        if name == "softmax":
            x, inner = self.tensor(args[0])
            where = self.lifted(args[1], inner, keep=0) if len(args) > 1 else None
            return algebra.softmax(x, self.axis(expression, inner), where), rank
        if name == "sum":
            x, inner = self.tensor(args[0])
            return algebra.sum(x, self.axis(expression, inner)), rank
        if name == "causal":
            return algebra.causal(*(self.size(arg) for arg in args)), rank
        if name in ("split", "repeat", "head"):
            if name == "head":
                x, inner = self.tensor(args[0])
                return algebra.head(x, self.size(args[1]), -inner), rank
            return getattr(algebra, name)(self.tensor(args[0])[0], self.size(args[1])), rank
        # transpose, negate, merge, finite, take, sum_to, scatter_add, pad: tensors throughout
        return getattr(algebra, name)(*(self.tensor(arg)[0] for arg in args)), rank

    def with_scalar(self, name: str, args: tuple[Expr, ...], scalar: list[bool]) -> Any:
        """Tensor ∘ scalar or scalar ∘ tensor, for the four arithmetic operations."""
        x, _ = self.tensor(args[1] if scalar[0] else args[0])
        s = self.fold(args[0] if scalar[0] else args[1], self.sizes)
        if name == "multiply":
            return self.algebra.scale(x, s)
        if name == "divide":
            return self.algebra.scale(x, Scalar.of(1) / s if isinstance(s, Scalar) else s)
        if name == "subtract":
            return (
                self.algebra.shift(self.algebra.negate(x), s)
                if scalar[0]
                else self.algebra.shift(x, -s)
            )
        return self.algebra.shift(x, s)

    def axis(self, expression: Op, rank: int) -> int:
        assert expression.axis is not None
        return expression.axis - rank

    def size(self, expression: Expr) -> Any:
        value = self.fold(expression, self.sizes)
        return int(value.rational()) if isinstance(value, Scalar) else value

    def aligned(self, args: tuple[Expr, ...], keep: int) -> list[Any]:
        """Operands with singleton axes inserted where their numbers of declared axes differ."""
        ranks = [rank_of(arg, self.ranks, frozenset(self.sizes)) for arg in args]
        return [self.lifted(arg, max(ranks), keep) for arg in args]

    def lifted(self, expression: Expr, rank: int, keep: int) -> Any:
        """The value with `rank` declared axes; new ones stand before the last `keep` (0: all)."""
        value, own = self.tensor(expression)
        if own == rank:
            return value
        return self.algebra.lift(value, -(keep or own), rank - own)
