"""The grammar: Python syntax restricted to what attention needs, parsed by `ast`.

Everything outside it is a SpecError that shows its line.

    X[n, d]                      an input and its trailing axes
    scale                        a scalar parameter
    Q[n, c] = X @ Wq             an equation and the shape contract of its result
"""

from __future__ import annotations

import ast
import textwrap
from fractions import Fraction
from typing import Final

import numpy as np

from qkvac.spec.grammar.consistency import InconsistencyError, typed
from qkvac.spec.grammar.operations import FUNCTIONS, OPERATIONS, RENAMED
from qkvac.spec.grammar.syntax import (
    Equation,
    Expr,
    Number,
    Op,
    Program,
    Ref,
    SpecError,
    Tensor,
    walk,
)

BINARY: Final = {
    ast.MatMult: "matmul",
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.BitAnd: "conjunction",
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
        try:
            return typed(program)
        except InconsistencyError as found:
            raise self.error(lines[found.name], None, str(found)) from None

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
        if name not in FUNCTIONS:
            hint = f"it is called {RENAMED[name]} now" if name in RENAMED else None
            known = hint or f"the grammar has {', '.join(FUNCTIONS)}"
            raise self.at(node, f"unknown function {name!r}; {known}")
        defined = OPERATIONS[name]
        parameters = [operand.name for operand in defined.operands]
        # `axis` stands second wherever it may be given by position.
        order = [*parameters[:1], "axis", *parameters[1:]] if defined.has_axis else parameters
        given = dict[str, ast.expr]()
        for position, argument in enumerate(node.args):
            if isinstance(argument, ast.Starred) or position >= len(order):
                raise self.at(argument, f"{name} takes ({', '.join(order)})")
            given[order[position]] = argument
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg not in order or keyword.arg in given:
                raise self.at(keyword.value, f"{name} takes ({', '.join(order)}), each once")
            given[keyword.arg] = keyword.value
        missing = [p for p in defined.required if p not in given]
        if defined.has_axis and "axis" not in given:
            missing.append("axis")
        if missing:
            raise self.at(node, f"{name} needs {', '.join(missing)}")
        axis = None
        if defined.has_axis:
            value = given["axis"]
            if not (isinstance(value, ast.Constant) and type(value.value) is int):
                raise self.at(value, "axis is a whole number that counts declared axes")
            axis = value.value
        args = tuple(self.expression(given[p]) for p in parameters if p in given)
        return Op(name, args, axis)
