"""Graphs that are broken on purpose, by a transform of thunder's or a pass of Inductor's, or by what they are given."""

import torch
from thunder.core.transform_common import Transform

from thunder_fx import thunderfx


class SwapSinForCos(Transform):
    """Gives wrong numbers."""

    def transform_traces_pre_prologue(self, prologue_trace, computation_trace, epilogue_trace, **kwargs):
        import thunder

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


class RaiseAtSinElseAtTanh(Transform):
    """Two ways to fail, of which a smaller graph may have the other."""

    def transform_traces_pre_prologue(self, prologue_trace, computation_trace, epilogue_trace, **kwargs):
        names = [bsym.sym.name for bsym in computation_trace.bound_symbols]
        if "sin" in names:
            raise RuntimeError("there is a sine")
        if "tanh" in names:
            raise RuntimeError("there is a tangent")
        return prologue_trace, computation_trace, epilogue_trace
