"""Equality of expressions: a form in which those are the same that differ in writing alone.

Sums and products are bags of signed terms and of factors with exponents, transpositions stand at
tensors, masks that are joined are a set. What is equal by associativity, commutativity, signs,
powers of scalars or (A B)ᵀ = Bᵀ Aᵀ has the same form, and every other change shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final, TypeAlias

from qkvac.spec.grammar.syntax import Expr, Number, Op, Ref

ONE: Final = Fraction(1)

Form: TypeAlias = Any
"""Nested tuples and frozensets, to be compared and hashed."""


def form(expression: Expr) -> Form:
    """The form of an expression: equal for those that are the same but for the way of writing."""
    if isinstance(expression, Ref):
        return expression.name
    if isinstance(expression, Number):
        return expression.value
    name, args = expression.name, expression.args
    if name in ("add", "subtract"):
        return _sum(expression)
    if name in ("multiply", "divide", "negate", "sqrt"):
        return _product(expression)
    if name == "transpose":
        return _transposed(args[0])
    if name == "conjunction":
        return (name, frozenset(_joined(expression)))
    if name == "matmul":
        sign, factors = ONE, list[Form]()
        for argument in args:
            inner = form(argument)
            factor, inner = _coefficient(inner)
            sign *= factor
            factors += inner[1] if _is(inner, "matmul") else [inner]
        return _scaled(("matmul", tuple(factors)), sign)
    return (name, tuple(map(form, args)), expression.axis)


def _is(found: Form, kind: str) -> bool:
    return isinstance(found, tuple) and found[0] == kind


def _sum(expression: Expr) -> Form:
    terms: dict[Form, Fraction] = {}
    _add(expression, ONE, terms)
    kept = {term: count for term, count in terms.items() if count}
    if len(kept) == 1:
        ((term, count),) = kept.items()
        return _scaled(term, count)
    return ("sum", frozenset(kept.items()))


def _add(expression: Expr, sign: Fraction, terms: dict[Form, Fraction]) -> None:
    if isinstance(expression, Op) and expression.name in ("add", "subtract"):
        left, right = expression.args
        _add(left, sign, terms)
        _add(right, sign if expression.name == "add" else -sign, terms)
        return
    count, term = _coefficient(form(expression))
    terms[term] = terms.get(term, Fraction(0)) + sign * count


def _coefficient(found: Form) -> tuple[Fraction, Form]:
    """The number that a form is multiplied by, and the rest of it."""
    if isinstance(found, Fraction):
        return found, ONE
    if not _is(found, "product"):
        return ONE, found
    _, number, factors = found
    return number, _bare(factors)


def _bare(factors: frozenset[tuple[Form, Fraction]]) -> Form:
    """A product of factors and no number; of a single one, that."""
    if len(factors) == 1:
        ((factor, power),) = factors
        if power == 1:
            return factor
    return ("product", ONE, factors)


def _scaled(found: Form, by: Fraction) -> Form:
    """A form multiplied by a number."""
    count, rest = _coefficient(found)
    count *= by
    if rest == ONE:
        return count
    if count == 1:
        return rest
    factors = rest[2] if _is(rest, "product") else frozenset({(rest, ONE)})
    return ("product", count, factors)


def _product(expression: Expr) -> Form:
    factors: dict[Form, Fraction] = {}
    number = _multiply(expression, ONE, factors)
    kept = frozenset((factor, power) for factor, power in factors.items() if power)
    return _scaled(_bare(kept), number) if kept else number


def _multiply(expression: Expr, power: Fraction, factors: dict[Form, Fraction]) -> Fraction:
    """Adds the factors of an expression to a power to `factors`; returns its number."""
    if isinstance(expression, Op) and expression.name in ("multiply", "divide"):
        left, right = expression.args
        number = _multiply(left, power, factors)
        return number * _multiply(
            right, power if expression.name == "multiply" else -power, factors
        )
    if isinstance(expression, Op) and expression.name == "negate":
        return -_multiply(expression.args[0], power, factors)
    if isinstance(expression, Op) and expression.name == "sqrt":
        return _multiply(expression.args[0], power / 2, factors)
    number, rest = _coefficient(form(expression))
    if rest != ONE:
        inner: Mapping[Form, Fraction] = {rest: ONE}
        if _is(rest, "product"):
            inner = dict(rest[2])
        for factor, own in inner.items():
            factors[factor] = factors.get(factor, Fraction(0)) + own * power
    if number == 1:
        return ONE
    if power.denominator == 1 and (number or power > 0):
        return Fraction(number**power.numerator)
    # A root, or 1/0: a factor that no number stands for.
    factors[number] = factors.get(number, Fraction(0)) + power
    return ONE


def _transposed(expression: Expr) -> Form:
    """The form of a transpose, moved to the tensors below."""
    if isinstance(expression, Op):
        name, args = expression.name, expression.args
        if name == "transpose":
            return form(args[0])
        if name == "matmul":
            return form(Op(name, tuple(Op("transpose", (a,)) for a in reversed(args))))
        if name == "negate":
            return form(Op(name, (Op("transpose", (args[0],)),)))
    return ("transpose", form(expression))


def _joined(expression: Expr) -> list[Form]:
    if isinstance(expression, Op) and expression.name == "conjunction":
        return [part for argument in expression.args for part in _joined(argument)]
    return [form(expression)]
