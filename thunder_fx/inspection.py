"""The free functions that answer questions about a compiled callable, and what they say when there is no answer.

They read records and never compile. Which record belongs to a callable is registry.py's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from thunder_fx import _torch
from thunder_fx.compiler import ThunderCompiler, live_compilers
from thunder_fx.errors import ThunderFXWarning
from thunder_fx.options import describe_callable
from thunder_fx.registry import candidates, resolve
from thunder_fx.subgraph import Region, SubgraphInfo

if TYPE_CHECKING:
    from thunder.core.trace import TraceCtx


def last_backend(fn: Callable[..., Any]) -> ThunderCompiler:
    """The ThunderCompiler that compiled a callable.

        tfoo = thunderfx(foo, fullgraph=True)
        thunder_fx.last_backend(tfoo).torch_compile_options     # {'fullgraph': True}

    Takes what thunderfx() or torch.compile returned, a bound method or functools.partial of it, a Module compiled in
    place, a copy of any, and thunder.dynamo's compiled objects.

    Raises:
        NotCompiledError: (a TypeError) no ThunderCompiler is known for `fn`; the text says what to ask for.
    """
    return resolve(fn)


def get_subgraph_info(fn: Callable[..., Any]) -> list[SubgraphInfo]:
    """What is known of each graph that Dynamo captured of a compiled callable, in order of capture.

        tfoo = thunderfx(foo)
        tfoo(x)
        for info in thunder_fx.get_subgraph_info(tfoo):
            print(info.source, info.regions, info.split_reasons)

    Where nothing was captured yet: `[]`, and one ThunderFXWarning that says why. Where several callables share one
    ThunderCompiler: the graphs of all, each with its `source`.

    Raises:
        NotCompiledError: (a TypeError) no ThunderCompiler is known for `fn`.
    """
    return _infos(fn, "get_subgraph_info: the function has no graph yet")


def last_traces(fn: Callable[..., Any]) -> list[TraceCtx]:
    """The final forward trace of each thunder region that has run, in order.

        tfoo(x)
        print(thunder_fx.last_traces(tfoo)[0])

    thunder.last_traces gives one function's progression through thunder's passes; here that is Region.traces. A region
    compiled for several shapes shows the last one. Warns and raises as get_subgraph_info() does.
    """
    infos = _infos(fn, "Must invoke the function before using last_traces")
    return _final(infos, lambda region: region.traces)


def last_backward_traces(fn: Callable[..., Any]) -> list[TraceCtx]:
    """The final backward trace of each thunder region that has one, in order of the forward.

        tfoo(x.requires_grad_())
        print(thunder_fx.last_backward_traces(tfoo)[0])

    Warns and raises as get_subgraph_info() does.
    """
    infos = _infos(fn, "last_backward_traces used before function invoked")
    return _final(infos, lambda region: region.backward_traces)


def last_prologue_traces(fn: Callable[..., Any]) -> list[TraceCtx]:
    """The final prologue trace of each thunder region that has run, in order: it unpacks and checks the inputs.

        tfoo(x)
        print(thunder_fx.last_prologue_traces(tfoo)[0])

    Warns and raises as get_subgraph_info() does.
    """
    infos = _infos(fn, "last_prologue_traces used before function invoked")
    return _final(infos, lambda region: region.prologue_traces)


def _final(infos: list[SubgraphInfo], stages: Callable[[Region], list[TraceCtx]]) -> list[TraceCtx]:
    progressions = [stages(region) for info in infos for region in info.regions]
    return [progression[-1] for progression in progressions if progression]


def _infos(fn: Callable[..., Any], without: str) -> list[SubgraphInfo]:
    compiler = resolve(fn)
    infos = list(compiler.subgraph_infos)
    if not infos:
        warnings.warn(f"{without}: {why_no_graph(fn, compiler)}", ThunderFXWarning, stacklevel=3)
    return infos


def why_no_graph(fn: Callable[..., Any], compiler: ThunderCompiler) -> str:
    """Why a callable that `compiler` compiles has no graph, in one sentence."""
    if compiler.emptied:
        return f"{describe_callable(fn)} has no new graph since forget() dropped what there was"
    return diagnose(fn, compiler.torch_compile_options.get("recompile_limit"))


def diagnose(fn: Callable[..., Any], recompile_limit: int | None = None) -> str:
    """Why a known callable has no graph, in one sentence, as far as Dynamo's state tells; and what to do."""
    what = describe_callable(fn)
    if isinstance(fn, torch.nn.Module) and not isinstance(fn, _torch.OptimizedModule):
        code = _torch.code_of_callable(fn)
        if code is not None and _torch.is_skipped_library_code(code):
            return (
                f"{what} is one of torch's own, compiled in place; Dynamo captures those from torch 2.14 on. Write "
                "`compiled = thunderfx(module)` and call `compiled`"
            )
    if _torch.stance() == "force_eager":
        return f'{what} runs eager, since torch.compiler.set_stance("force_eager") is in force'
    key = next((key for key in candidates(fn) if _torch.context_of(key) is not None), None)
    code = _torch.guarded_code_of(key) if key is not None else None
    if key is None or code is None:
        return f"{what} has not been called yet"
    return f"{what} {_diagnose_from_code(code, _torch.context_of(key), recompile_limit)}"


def _diagnose_from_code(code: Any, context: Any, recompile_limit: int | None) -> str:
    place = (code.co_filename, code.co_firstlineno, code.co_name)
    outer = next((i for c in live_compilers() for i in c.subgraph_infos if place in i.inlined), None)
    inlined = f"was inlined into an outer compiled callable: it is a part of {outer and outer.source}; ask for that"
    if not _torch.was_seen(code):
        if outer is not None:
            return inlined
        return "has not been called yet (or only inside of a callable that another backend compiled, as a part of it)"
    usage = _torch.cache_usage(code, context, recompile_limit)
    if usage.full:
        return (
            f"runs eager, since Dynamo has reached torch._dynamo.config.{usage.which} for its code, counting every "
            "callable compiled from it; see TORCH_LOGS=recompiles for why it recompiles, raise the limit, or call "
            "torch._dynamo.reset()"
        )
    if outer is not None:
        return inlined
    return (
        "has not been called yet, or its frame was skipped: Dynamo has seen its code and captured nothing, as where it "
        "finds no tensor operation, or a graph break inside a loop or a with block; see TORCH_LOGS=graph_breaks,dynamo"
    )
