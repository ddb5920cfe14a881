"""The operations of the grammar, each defined once.

To add one, define it here and give every algebra a method of its name (`algebra`); a
test holds all algebras to that. A nonlinear one comes with three lemmas, which the docstring of
`bounds.softmax_bound` or `bounds.logistic` states: how an error of its argument moves it, what
a right implementation may add, and in which forms it may be computed.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from qkvac.spec.grammar import numpy_helpers, rules
from qkvac.spec.grammar.operation import ATOM, PRODUCT, SUM, UNARY, Operand, Operation, mathml_sign
from qkvac.spec.grammar.syntax import Expr, Op

MINUS: Final = "\u2212"

_X: Final = Operand("x")
_EITHER: Final = (Operand("x", "any"), Operand("y", "any"))
_MASKS: Final = (Operand("x", "mask"), Operand("y", "mask"))
_LIKE: Final = Operand("like")


def _negative(node: Expr) -> Expr:
    return Op("negate", (node,))


_DEFINED: Final = (
    Operation(
        "matmul",
        (Operand("x", least=2), Operand("y", least=2)),
        rules.product,
        is_product=True,
        level=PRODUCT,
        text=rules.infix("@", PRODUCT),
        latex=rules.infix(r"\,", PRODUCT),
        # The invisible sign is read out and not seen.
        mathml=rules.infix_mathml(
            lambda node, page: mathml_sign("\u2062") + '<mspace width="0.15em"/>', PRODUCT
        ),
        numpy=rules.infix_numpy("@", PRODUCT, keep=2),
        evaluate=rules.aligned(2),
        reverse=rules.back_matmul,
        powers="product",
        signs="product",
    ),
    Operation(
        "add",
        _EITHER,
        rules.elementwise,
        level=SUM,
        text=rules.infix("+", SUM),
        latex=rules.infix("+", SUM),
        mathml=rules.infix_mathml(rules.symbol("+"), SUM),
        numpy=rules.infix_numpy("+", SUM),
        evaluate=rules.arithmetic,
        exact=operator.add,
        reverse=rules.both(lambda given: given),
        powers="sum",
        signs="sum",
    ),
    Operation(
        "subtract",
        _EITHER,
        rules.elementwise,
        level=SUM,
        text=rules.infix("-", SUM),
        latex=rules.infix("-", SUM),
        mathml=rules.infix_mathml(rules.symbol(MINUS), SUM),
        numpy=rules.infix_numpy("-", SUM),
        evaluate=rules.arithmetic,
        exact=operator.sub,
        reverse=rules.both(_negative),
        powers="sum",
        signs="sum",
    ),
    Operation(
        "multiply",
        _EITHER,
        rules.elementwise,
        is_product=True,
        level=PRODUCT,
        text=rules.infix("*", PRODUCT),
        latex=rules.infix(r"\cdot", PRODUCT),
        mathml=rules.infix_mathml(rules.times, PRODUCT),
        numpy=rules.infix_numpy("*", PRODUCT),
        evaluate=rules.arithmetic,
        exact=operator.mul,
        reverse=rules.back_factor,
        powers="product",
        signs="product",
    ),
    Operation(
        "divide",
        _EITHER,
        rules.quotient,
        level=PRODUCT,
        levels={"latex": ATOM, "mathml": ATOM},
        text=rules.infix("/", PRODUCT),
        latex=rules.pattern(r"\frac{{{}}}{{{}}}"),
        mathml=rules.pattern("<mfrac>{}{}</mfrac>"),
        numpy=rules.infix_numpy("/", PRODUCT),
        evaluate=rules.arithmetic,
        exact=operator.truediv,
        reverse=rules.first_only(lambda b: Op("divide", (b.given, b.node.args[1]))),
    ),
    Operation(
        "negate",
        (Operand("x", "any"),),
        level=UNARY,
        text=rules.pattern("-{}", UNARY),
        latex=rules.pattern("-{}", UNARY),
        mathml=rules.pattern(f"<mrow>{mathml_sign(MINUS)}{{}}</mrow>", UNARY),
        numpy=rules.pattern("-{}", UNARY),
        exact=operator.neg,
        reverse=rules.first_only(lambda b: _negative(b.given)),
    ),
    Operation(
        "transpose",
        (Operand("x", least=2),),
        lambda node, axes: (*axes[0][:-2], axes[0][-1], axes[0][-2]),
        text=rules.pattern("{}.T", ATOM),
        latex=rules.pattern(r"{}^{{\top}}", ATOM),
        mathml=rules.pattern(f"<msup>{{}}{mathml_sign('⊤')}</msup>", ATOM),
        numpy=rules.pattern("{}.swapaxes(-1, -2)", ATOM),
        reverse=rules.first_only(lambda b: rules.turned(b.given)),
    ),
    Operation(
        "conjunction",
        _MASKS,
        rules.elementwise,
        is_mask=True,
        level=SUM,
        text=rules.infix("&", SUM),
        latex=rules.infix(r"\wedge", SUM),
        mathml=rules.infix_mathml(rules.symbol("\u2227"), SUM),
        numpy=rules.infix_numpy("&", SUM),
        evaluate=rules.aligned(0),
    ),
    Operation(
        "sqrt",
        (Operand("x", "scalar"),),
        rules.scalar,
        latex=rules.pattern(r"\sqrt{{{}}}"),
        mathml=rules.pattern("<msqrt>{}</msqrt>"),
        numpy=rules.pattern("math.sqrt({})"),
        exact=lambda x: x.sqrt(),
    ),
    Operation(
        "softmax",
        (_X, Operand("where", "mask", optional=True)),
        rules.softmax,
        has_axis=True,
        is_nonlinear=True,
        helper=numpy_helpers.SOFTMAX,
        evaluate=rules.masked,
        reverse=rules.back_softmax,
        powers="none",
        signs="none",
    ),
    Operation(
        "sigmoid",
        (_X,),
        is_nonlinear=True,
        latex=rules.pattern(r"\sigma\left({}\right)"),
        helper=numpy_helpers.SIGMOID,
        reverse=rules.back_sigmoid,
        powers="none",
        signs="none",
    ),
    Operation(
        "tanh",
        (_X,),
        is_nonlinear=True,
        latex=rules.pattern(r"\tanh\left({}\right)"),
        numpy=rules.pattern("np.tanh({})"),
        reverse=rules.back_tanh,
        powers="none",
    ),
    Operation(
        "causal",
        (Operand("L", "scalar"), Operand("S", "scalar")),
        lambda node, axes: node.args,
        is_mask=True,
        numpy=rules.pattern("np.tri({}, {}, dtype=bool)"),
        ordered=rules.sizes,
    ),
    Operation(
        "finite",
        (Operand("mask"),),
        is_mask=True,
        numpy=rules.pattern("np.isfinite({})"),
        # −inf drops a key, and +inf does not.
        signs="none",
    ),
    Operation(
        "split",
        (Operand("x", least=2), Operand("h", "scalar")),
        rules.split,
        helper=numpy_helpers.SPLIT,
        reverse=rules.first_only(lambda b: Op("merge", (b.given,))),
        ordered=rules.heads_of_columns,
    ),
    Operation(
        "merge",
        (Operand("x", least=3),),
        rules.merged,
        helper=numpy_helpers.MERGE,
        reverse=rules.back_merge,
        ordered=rules.columns_of_heads,
    ),
    Operation(
        "repeat",
        (Operand("x", least=3), Operand("h", "scalar")),
        lambda node, axes: (*axes[0][:-3], node.args[1], *axes[0][-2:]),
        helper=numpy_helpers.REPEAT,
        reverse=rules.like_argument("sum_to"),
        ordered=rules.shared_heads,
    ),
    Operation(
        "take",
        (Operand("table"), Operand("index", "index")),
        rules.table,
        numpy=lambda node, page: f"{page.of(node.args[0], ATOM)}[{page.of(node.args[1])}]",
        reverse=rules.like_argument("scatter_add"),
        ordered=rules.entries,
    ),
    Operation(
        "first",
        (_X, Operand("n", "scalar")),
        lambda node, axes: (node.args[1], *axes[0][1:]),
        numpy=rules.first_numpy,
        evaluate=rules.of_axis_0,
        reverse=rules.like_argument("pad"),
        ordered=rules.first_entries,
    ),
    Operation("sum", (_X,), rules.summed, has_axis=True, numpy=rules.sum_numpy),
    Operation(
        "sum_to",
        (_X, _LIKE),
        rules.like_last,
        numpy=rules.sum_to_numpy,
        helper=numpy_helpers.SUM_TO,
        evaluate=rules.sum_to,
        ordered=rules.everything,
    ),
    Operation(
        "scatter_add",
        (_X, Operand("index", "index"), _LIKE),
        rules.like_last,
        helper=numpy_helpers.SCATTER_ADD,
        ordered=rules.everything,
    ),
    Operation(
        "pad",
        (_X, _LIKE),
        rules.like_last,
        helper=numpy_helpers.PAD,
        ordered=rules.everything,
    ),
)

OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType({o.name: o for o in _DEFINED})
"""Operation by name, in the order of the documentation."""

FUNCTIONS: Final = tuple(o.name for o in _DEFINED if o.level == ATOM and o.name != "transpose")
"""Those that are written as a call."""

RENAMED: Final[Mapping[str, str]] = MappingProxyType({"head": "first"})
"""Functions of earlier versions, by what they are called now."""


def operation(name: str) -> Operation:
    """The definition of an operation; one of faulty equations has operands that are all tensors."""
    return OPERATIONS.get(name) or Operation(name, ())
