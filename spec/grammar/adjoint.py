"""The adjoint derivation: gradients as declared equations, from the equations of a profile.

For a cotangent dC of the result, every tensor T of the program has dT = ∂⟨dC, C⟩/∂T. Walking the
equations backwards, each operation hands the cotangent of its result to its operands:

    z = x @ y         dx = dz @ yᵀ,  dy = xᵀ @ dz
    p = softmax(s)    ds = p · (dp − Σ p · dp), the sum along the softmax's axis
    x + y, x · y      dz, and dz times the other factor
    repeat, take      sums over what was repeated or taken more than once

What several equations read gets one sum of all that they hand back, so that the rounding
interpretation sees it as the single open sum that frameworks make of it. Operands that were
repeated to fit another, and inputs that a batch shares (weights, biases, masks), get the sum over
their repetitions by `sum_to`. The rules need the value of each nonlinear call, so the derivation
starts from the normal form, in which each has a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from typing import Final

from qkvac.spec.grammar.axes import axes_of, is_broadcast, is_scalar
from qkvac.spec.grammar.consistency import ordered
from qkvac.spec.grammar.normal_form import fresh, normal
from qkvac.spec.grammar.operation import Backward
from qkvac.spec.grammar.operations import operation
from qkvac.spec.grammar.printing import declaration, expression
from qkvac.spec.grammar.rules import turned
from qkvac.spec.grammar.syntax import Equation, Expr, Op, Program, Ref, SpecError, Tensor

SUMMING: Final = ("scatter_add", "pad", "sum_to")
"""Operations that sum over batch axes themselves."""

LOGITS: Final = "S"
"""What the argument of a softmax is called that is no tensor of the text; further ones S2, …"""


def cotangent(name: str) -> str:
    """The name of a tensor's cotangent: dX for X."""
    return f"d{name}"


@cache
def adjoint(
    program: Program,
    last: str,
    contracted: bool = False,
    shared: frozenset[str] = frozenset(),
) -> Program:
    """The program, with a cotangent of `last` as a further input, and equations for all others.

    Gradients of the real inputs come last, in the order of the inputs. `shared` are the inputs
    that all samples of a batch have in common, or that are broadcast otherwise; their gradients
    are summed to their shapes. `contracted` takes the sum of a softmax's rule over the width of
    its product instead of over the keys, as kernels do that never hold dA: for c = p @ v it is
    Σ p · dp = Σ dc · c, where keys are the last axis. Both are the same in exact arithmetic, and
    rounded differently.

    Raises SpecError for an operation that has no reverse rule here, or if a name of the program
    is that of a cotangent.
    """
    return _Adjoint(normal(program, products=False), last, contracted, shared).derived()


class _Adjoint:
    """One backward walk: what has been handed back to each tensor so far, and the equations."""

    def __init__(
        self, program: Program, last: str, contracted: bool, shared: frozenset[str]
    ) -> None:
        self.program = program
        self.last = last
        self.contracted = contracted
        self.shared = shared
        self.given = Tensor(cotangent(last), program.tensors[last].axes)
        self.tensors = {**program.tensors, self.given.name: self.given}
        """All tensors so far, cotangents included."""
        self.handed: dict[str, list[Expr]] = {}
        self.equations: list[Equation] = []
        self.line = program.equations[-1].line

    def derived(self) -> Program:
        program = self.program
        for equation in reversed(program.equations):
            name = equation.target.name
            if name == self.last:
                self.hand(equation.expression, Ref(cotangent(name)), equation.target)
            elif name in self.handed:
                self.hand(equation.expression, self.collected(equation.target), equation.target)
        for tensor in program.inputs:
            if tensor.kind == "real" and tensor.name in self.handed:
                self.collected(tensor)
        return ordered(
            Program(
                (*program.inputs, self.given),
                program.parameters,
                (*program.equations, *self.equations),
            )
        )

    def collected(self, tensor: Tensor) -> Expr:
        """States the equation of a tensor's cotangent, and refers to it."""
        handed, own = self.handed[tensor.name], Ref(tensor.name)
        total = _sum(handed)
        if tensor.name in self.shared and not _sums(total):
            # One sum of all, unless some of it is to be summed over more axes than the rest.
            if len({axes_of(part, self.tensors) for part in handed}) == 1:
                total = Op("sum_to", (total, own))
            else:
                total = _sum([Op("sum_to", (part, own)) for part in handed])
        return self.stated(cotangent(tensor.name), tensor, total)

    def stated(self, name: str, like: Tensor, value: Expr) -> Expr:
        target = Tensor(name, like.axes)
        self.tensors.setdefault(name, target)
        self.line += 1
        text = f"{declaration(target)} = {expression(value)}"
        self.equations.append(Equation(target, value, text, self.line))
        return Ref(name)

    def hand(self, node: Expr, given: Expr, target: Tensor) -> None:
        """Hands `given`, the cotangent of `node`, back to the tensors below it.

        `target` is the tensor whose right-hand side `node` belongs to.
        """
        if isinstance(node, Ref):
            if self.tensors[node.name].kind == "real":
                self.handed.setdefault(node.name, []).append(given)
            return
        assert isinstance(node, Op), "a number is no tensor"
        defined = operation(node.name)
        if defined.reverse is None:
            raise SpecError(f"{node.name} has no reverse rule")
        own = Ref(target.name) if defined.is_nonlinear else node
        back = Backward(node, given, own, lambda: self.terms(target, node.axis, given))
        for argument, part in defined.reverse(back):
            if is_scalar(argument, self.tensors):
                continue
            if defined.is_nonlinear and not isinstance(argument, Ref):
                # A statement of its own, as several tensors below may refer to it.
                part = self.stated(self.logits(), target, part)
            self.hand(argument, self.fitted(argument, part), target)

    def fitted(self, argument: Expr, part: Expr) -> Expr:
        """`part` summed to the axes of `argument`, where that was repeated along some."""
        if isinstance(argument, Ref) and argument.name in self.shared:
            return part  # all that it is handed will be summed
        own, result = (axes_of(node, self.tensors) for node in (argument, part))
        return Op("sum_to", (part, argument)) if is_broadcast(own, result) else part

    def logits(self) -> str:
        """A free name for the cotangent of a nonlinear operation's argument."""
        used = {cotangent(name) for name in self.program.tensors}.union(
            self.tensors, self.program.axis_names, self.program.parameters
        )
        return fresh(cotangent(LOGITS), used)

    def terms(self, target: Tensor, axis: int | None, given: Expr) -> Expr:
        """What is summed along the axis of a softmax, which is the tensor `target`."""
        weights, handed = Ref(target.name), self.handed.get(target.name, [])
        if self.contracted and len(handed) == 1 and axis == target.rank - 1:
            (product,) = handed
            if isinstance(product, Op) and product.name == "matmul":
                left, right = product.args
                return Op("multiply", (left, Op("matmul", (weights, turned(right)))))
        return Op("multiply", (weights, given))


def _sum(parts: Sequence[Expr]) -> Expr:
    return reduce(lambda x, y: Op("add", (x, y)), parts)


def _sums(node: Expr) -> bool:
    """Whether a sum over batch axes is already taken by the operation itself."""
    return isinstance(node, Op) and node.name in SUMMING
