"""One measurement, in the process that this is: `python benchmarks/measure.py WHAT [ARGUMENT ...]` prints JSON.

run.py calls it, in turns for the contestants, each time anew, so that no cache of one call helps the next.
"""

from __future__ import annotations

import contextlib
import gc
import json
import pathlib
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import contestants
import models

ROUNDS, CALLS, WARM_UP = 15, 500, 500


def first_call(contestant: str, layers: str) -> dict[str, Any]:
    """Seconds from the first call to the last gradient, and thunder_fx's phases; one tiny call went before."""
    import torch

    model, inputs = models.llama(int(layers))
    model(**inputs).loss.backward()
    model.zero_grad()
    compile_by = contestants.compiler(contestant)
    compile_by(lambda x: x + 1)(torch.ones(2))
    compiled = compile_by(model)
    start = time.perf_counter()
    compiled(**inputs).loss.backward()
    seconds = time.perf_counter() - start
    found: dict[str, Any] = {"seconds": seconds}
    if contestant == "thunder_fx":
        import thunder_fx

        found["phases"] = thunder_fx.explain(compiled).seconds
    return found


def steady_state(kind: str, grad: str) -> dict[str, float]:
    """Microseconds of a call once it is compiled: each contestant in turns, the best of several rounds, one thread."""
    import torch

    torch.set_num_threads(1)
    calls = {}
    for name in contestants.NAMES:
        fn, x = models.steady(kind)
        x.requires_grad_(grad == "grad")
        if not isinstance(fn, torch.nn.Module):
            fn = _own(fn, name)
        context = contextlib.nullcontext() if grad == "grad" else torch.no_grad()
        compiled = contestants.compiler(name)(fn)
        with context:
            for _ in range(WARM_UP):
                compiled(x)
        calls[name] = (compiled, x)
    best = dict.fromkeys(calls, float("inf"))
    with contextlib.nullcontext() if grad == "grad" else torch.no_grad():
        for _ in range(ROUNDS):
            for name, (compiled, x) in calls.items():
                start = time.perf_counter()
                for _ in range(CALLS):
                    compiled(x)
                best[name] = min(best[name], (time.perf_counter() - start) / CALLS * 1e6)
    return best


def _own(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same with a code object of its own: several compiled ones would share Dynamo's cache, and its guards."""
    import types

    code = fn.__code__.replace(co_name=name.replace(".", "_").replace(" ", "_"))
    return types.FunctionType(code, fn.__globals__, name)


def step(contestant: str, model_name: str) -> dict[str, Any]:
    """Milliseconds of a training step, the median of many, and how many graphs and regions there are."""
    import torch

    torch.set_num_threads(1)
    model, inputs = models.zoo(model_name)
    model.train()
    compiled = contestants.compiler(contestant)(model)

    def run() -> None:
        compiled(**inputs).loss.backward()
        model.zero_grad()

    for _ in range(5):
        run()
    times = []
    for _ in range(60):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    found: dict[str, Any] = {"ms": statistics.median(times) * 1e3}
    if contestant in ("thunder_fx", "thunder.dynamo"):
        import thunder_fx

        infos = thunder_fx.get_subgraph_info(compiled)
        found["graphs"], found["regions"] = len(infos), sum(len(info.regions) for info in infos)
    return found


def memory(contestant: str, way: str) -> dict[str, float]:
    """The most MiB that the process ever had, having compiled and run a model of a gigabyte once."""
    import resource

    import torch

    if way == "whole Modules":
        torch._dynamo.config.inline_inbuilt_nn_modules = False
    model, x = models.gigabyte()
    compiled = contestants.compiler(contestant)(model)
    with torch.no_grad():
        compiled(x)
    return {"MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def kept(contestant: str, layers: str) -> dict[str, float]:
    """KiB of Python objects that a compiled model holds, all that goes with it and a reset; a smaller one went before.

    Of thunder_fx also what forget() frees of it, the records, and what goes when it is dropped, without a reset.
    """
    import tracemalloc

    import torch

    compile_by = contestants.compiler(contestant)
    for count in (1, int(layers)):
        model, inputs = models.llama(count)
        torch._dynamo.reset()
        tracemalloc.start()
        compiled = compile_by(model)
        compiled(**inputs).loss.backward()
        model.zero_grad()
        whole = _traced()
        found = {}
        if contestant == "thunder_fx":
            import thunder_fx

            thunder_fx.forget(compiled)
            found["records"] = whole - _traced()
        del compiled, model
        found["dropped"] = whole - _traced()
        torch._dynamo.reset()
        found["KiB"] = whole - _traced()
        tracemalloc.stop()
    return found


def _traced() -> float:
    import tracemalloc

    gc.collect()
    return tracemalloc.get_traced_memory()[0] / 1024


def lookup(count: str) -> dict[str, float]:
    """Microseconds of last_backend(fn), and of a WeakKeyDictionary alone, with so many live entries."""
    import weakref

    import thunder_fx

    backend = thunder_fx.ThunderCompiler()
    functions = [_numbered() for _ in range(int(count))]
    bare: Any = weakref.WeakKeyDictionary()
    for fn in functions:
        thunder_fx.register(fn, backend)
        bare[fn] = backend
    wanted = functions[:: max(1, len(functions) // 1000)]
    best = {"last_backend": float("inf"), "bare": float("inf")}
    for _ in range(30):
        for name, ask in (("last_backend", thunder_fx.last_backend), ("bare", bare.__getitem__)):
            start = time.perf_counter()
            for fn in wanted:
                ask(fn)
            best[name] = min(best[name], (time.perf_counter() - start) / len(wanted) * 1e6)
    return best


def _numbered() -> Callable[[Any], Any]:
    return lambda x: x


def views(layers: str) -> dict[str, float]:
    """Seconds of save_reproducer(), of the peer's, and of explain(), of one model that both have compiled."""
    import thunder_fx

    found = {}
    for name in ("thunder_fx", "thunder.dynamo"):
        model, inputs = models.llama(int(layers))
        compiled = contestants.compiler(name)(model)
        start = time.perf_counter()
        compiled(**inputs).loss.backward()
        found[f"{name} first call"] = time.perf_counter() - start
        times = []
        for _ in range(3):
            folder = tempfile.mkdtemp()
            start = time.perf_counter()
            if name == "thunder_fx":
                thunder_fx.save_reproducer(compiled, folder)
            else:
                compiled._backend.save_reproducer_to_folder(folder)
            times.append(time.perf_counter() - start)
        found[f"{name} save"] = statistics.median(times)
        if name == "thunder_fx":
            start = time.perf_counter()
            thunder_fx.explain(compiled).to_dict(traces=False)
            found["explain"] = time.perf_counter() - start
    return found


def imports(module: str) -> dict[str, float]:
    """Seconds to import a module in a process that has imported nothing."""
    import importlib

    start = time.perf_counter()
    importlib.import_module(module)
    return {"seconds": time.perf_counter() - start}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("RESULT " + json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
