"""Graphs that are broken on purpose, by a transform of thunder's or a pass of Inductor's, or by what they are given."""

import torch

from thunder_fx import thunderfx

# ruff: isort: split
import thunder
from thunder.core.transform_common import Transform
from thunder.extend import OperatorExecutor, register_executor


class SwapSinForCos(Transform):
    """Gives wrong numbers."""

    def transform_traces_pre_prologue(self, prologue_trace, computation_trace, epilogue_trace, **kwargs):
        for index, bsym in enumerate(computation_trace.bound_symbols):
            if bsym.sym.name == "sin":
                cos = thunder.core.prims.cos.bind(*bsym.args, output=bsym.output)
                wrong = thunder.torch.cos.bind(*bsym.args, output=bsym.output, subsymbols=[cos])
                computation_trace.bound_symbols[index] = wrong
        return prologue_trace, computation_trace, epilogue_trace


class RaiseInTransform(Transform):
    """Does not compile."""

    def transform_traces_pre_prologue(self, prologue_trace, computation_trace, epilogue_trace, **kwargs):
        raise RuntimeError("boom in a transform")


def swap_sin_for_cos(graph):
    for node in graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            node.target = torch.ops.aten.cos.default


def raise_in_pass(graph):
    raise RuntimeError("boom in a pass")


def wrong_in_thunder():
    compiled = thunderfx(lambda x: x.sin() * 2, transforms=[SwapSinForCos()])
    return compiled, (torch.rand(4, requires_grad=True),)


def does_not_compile_in_thunder():
    return thunderfx(lambda x: x.sin() * 2, transforms=[RaiseInTransform()]), (torch.rand(4),)


def fails_in_thunder():
    return thunderfx(lambda x, i: x[i] * 2), (torch.rand(4), torch.tensor([1, 99]))


def wrong_in_inductor():
    compiled = thunderfx(lambda x: torch.sinc(x), options={"post_grad_custom_post_pass": swap_sin_for_cos})
    return compiled, (torch.rand(4) + 1,)


def does_not_compile_in_inductor():
    compiled = thunderfx(lambda x: torch.sinc(x), options={"post_grad_custom_post_pass": raise_in_pass})
    return compiled, (torch.rand(4),)


def fails_in_inductor():
    return thunderfx(lambda x, i: torch.take(torch.sinc(x), i)), (torch.rand(4), torch.tensor([1, 99]))


# The derivative of sin is cos: a backward that raises, in a graph whose forward is right.
raises_at_cos = OperatorExecutor("raises_at_cos")
register_executor(raises_at_cos)


def _raise_in_backward(*args):
    raise RuntimeError("boom in backward")


raises_at_cos.register_implementation(
    thunder.core.prims.cos,
    raises_at_cos.register_operator("raising_cos", like=thunder.core.prims.cos, fn=_raise_in_backward),
)


def fails_in_backward_of_thunder(**options):
    executors = [raises_at_cos, *thunder.get_default_executors()]
    compiled = thunderfx(lambda x: x.sin() * 2, executors=executors, **options)
    return compiled, (torch.rand(4, requires_grad=True),)


@torch.library.custom_op("thunder_fx_tests::raising_double", mutates_args=())
def raising_double(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("boom in backward")


raising_double.register_fake(torch.empty_like)


@torch.library.custom_op("thunder_fx_tests::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


double.register_fake(torch.empty_like)
double.register_autograd(lambda ctx, gradient: raising_double(gradient))


def fails_in_backward_of_inductor(**options):
    return thunderfx(lambda x: torch.sinc(double(x)), **options), (torch.rand(4, requires_grad=True),)


class RaiseAtSinElseAtTanh(Transform):
    """Two ways to fail, of which a smaller graph may have the other."""

    def transform_traces_pre_prologue(self, prologue_trace, computation_trace, epilogue_trace, **kwargs):
        names = [bsym.sym.name for bsym in computation_trace.bound_symbols]
        if "sin" in names:
            raise RuntimeError("there is a sine")
        if "tanh" in names:
            raise RuntimeError("there is a tangent")
        return prologue_trace, computation_trace, epilogue_trace
