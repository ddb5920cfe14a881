"""Roles of cotangents: which equation of an adjoint program is the gradient of which part.

Rules about gradients speak of the gradient of the scores or of the query's weights. What they may
refer to besides the names that `qkvac.spec.faults.rewriting` lists:

    dA, dZ, dO       cotangents of the weights, of the softmax's argument, and of the scores
    dq, dk, dv       cotangents of queries, keys and values, where they are projected
    dY               the cotangent that the function is given
    g                the context's cotangent, as the factor that it is multiplied as
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qkvac.spec.grammar.adjoint import LOGITS, cotangent
from qkvac.spec.grammar.syntax import Expr, Op, Program, Ref, walk

Bindings = Mapping[str, Expr]

LETTERS: Final = {"query": "q", "key": "k", "value": "v"}


def backward(program: Program) -> frozenset[str]:
    """Targets of the equations that compute gradients; none in a forward program."""
    tensors = program.tensors
    named = {cotangent(name) for name in (*tensors, LOGITS)}
    if not any(tensor.name in named for tensor in program.inputs):
        return frozenset()
    targets = (equation.target.name for equation in program.equations)
    return frozenset(name for name in targets if name in named or _is_of_logits(name))


def parts(
    program: Program,
    bound: Bindings,
    projections: Mapping[str, str],
    scores: str = "",
    context: str = "",
) -> dict[str, str]:
    """Part → the equation that computes its gradient, for those that the program has."""
    logits = _logits(program, bound.get("A")) or cotangent(scores)
    found = {
        "logits": logits,
        "scores": cotangent(scores) if logits != cotangent(scores) else "",
        "context": cotangent(context),
        **{part: cotangent(name) for part, name in projections.items()},
    }
    named = {"weights": "A", "tokens": "x", "mask": "B", "output-weights": "o"}
    named |= {f"{part}-weights": f"w{letter}" for part, letter in LETTERS.items()}
    named |= {f"{part}-bias": f"b{letter}" for part, letter in LETTERS.items()}
    named |= {"token-table": "E", "position-table": "p"}
    for part, letter in named.items():
        found[part] = cotangent(tensor_in(bound.get(letter)))
    targets = backward(program)
    return {part: name for part, name in found.items() if name in targets}


def _logits(program: Program, weights: Expr | None) -> str:
    """The stated gradient of the softmax's argument; "" if there is none."""
    stated = (name for name in backward(program) if _is_of_logits(name))
    return next((n for n in stated if weights in tuple(walk(program.equation(n).expression))), "")


def _is_of_logits(name: str) -> bool:
    return name.rstrip("0123456789") == cotangent(LOGITS)  # dS, dS2, …


def letters(program: Program, found: Mapping[str, str]) -> dict[str, Expr]:
    """What the letters of this module stand for."""
    bound: dict[str, Expr] = {"dY": Ref(program.inputs[-1].name)}
    for letter, part in (("dA", "weights"), ("dZ", "logits"), *_PROJECTED):
        if part in found:
            bound[letter] = Ref(found[part])
    scores = found.get("scores", found.get("logits"))
    if scores is not None:
        bound["dO"] = Ref(scores)
    if "weights" in found:
        product = program.equation(found["weights"]).expression
        if isinstance(product, Op) and product.name == "matmul":
            bound["g"] = product.args[0]
    return bound


def tensor_in(expression: Expr | None) -> str:
    """The tensor that an expression is, or is the transpose of; "" for others."""
    if isinstance(expression, Op) and expression.name == "transpose":
        expression = expression.args[0]
    return expression.name if isinstance(expression, Ref) else ""


_PROJECTED: Final = tuple((f"d{letter}", part) for part, letter in LETTERS.items())
