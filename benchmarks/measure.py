"""One measurement, in the process that this is: `python benchmarks/measure.py WHAT [ARGUMENT ...]` prints JSON.

suite.py calls it, in turns for the contestants, each time anew, so that no cache of one call helps the next. What is
timed is checked: it was compiled, and its numbers are eager's.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import contestants
import models


def first_call(contestant: str, layers: str) -> dict[str, Any]:
    """Seconds from the first call to the last gradient, and thunder_fx's phases; tiny calls went before.

    Then what is asked of it: seconds of save_reproducer(), thunder_fx's or thunder.dynamo's, and of explain().
    """
    import torch

    model, inputs = models.llama(int(layers))
    expected = _trained(model, model, inputs)
    compile_by = contestants.compiler(contestant)
    for warm_up in (compile_by, torch.compile):
        warm_up(lambda x: x + 1)(torch.ones(2, requires_grad=True)).sum().backward()
    before = contestants.graphs_so_far()
    compiled = compile_by(model)
    start = time.perf_counter()
    loss = compiled(**inputs).loss
    loss.backward()
    found: dict[str, Any] = {"seconds": time.perf_counter() - start}
    _must_agree(contestant, [loss, *_gradients(model)], expected)
    contestants.parts(contestant, compiled, before)
    gc.collect()  # which is due by now, takes half a second, and would be in the time of what is asked first
    if contestant == "thunder_fx":
        import thunder_fx

        found["explain"] = _seconds(lambda _: thunder_fx.explain(compiled).to_dict(traces=False), 1)
        found["phases"] = thunder_fx.explain(compiled).seconds
        found["save"] = _seconds(functools.partial(thunder_fx.save_reproducer, compiled), 3)
    if contestant == "thunder.dynamo":
        found["save"] = _seconds(compiled._backend.save_reproducer_to_folder, 3)
    return found


def _seconds(ask: Callable[[str], Any], times: int) -> float:
    """The median of so many, each with a new folder to save to."""
    seconds = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            ask(folder)
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def steady_state(kind: str, grad: str, sizes: str) -> dict[str, list[float]]:
    """Microseconds of a call once it is compiled, one figure for each of 15 rounds, on one thread."""
    import torch

    count = 500 if kind == "tiny function" else 100

    torch.set_num_threads(1)
    calls, eager = {}, {}
    with contextlib.nullcontext() if grad == "grad" else torch.no_grad():
        for name in contestants.NAMES:
            fn, x = models.steady(kind)
            x.requires_grad_(grad == "grad")
            eager[name], fn, before = fn, _own(fn, name), contestants.graphs_so_far()
            compiled = contestants.compiler(name)(fn, dynamic=True if sizes == "dynamic" else None)
            _must_agree(name, _outcome(compiled, x), _outcome(eager[name], x))
            # thunder has no multi_head_attention_forward, of which each of its two layers has one.
            contestants.parts(name, compiled, before, given_away=2 if kind == "transformer" else 0)
            calls[name] = functools.partial(compiled, x)
        found = _in_rounds(calls, rounds=15, count=count, warm_up=count)
        for name, call in calls.items():  # a first call may go another way than those that were timed
            _must_agree(name, _outcome(call.func, x / 2), _outcome(eager[name], x / 2))
        return found


def _outcome(fn: Callable[[Any], Any], x: Any) -> list[Any]:
    """What comes out of it, and the gradient that goes back, None where there is none."""
    import torch

    x = x.detach().clone().requires_grad_(x.requires_grad)
    result = fn(x)
    gradient = torch.autograd.grad(result.sum(), x)[0] if result.requires_grad else None
    return [result.detach(), gradient]


def _in_rounds(calls: Mapping[str, Callable[[], Any]], rounds: int, count: int, warm_up: int) -> dict[str, list[float]]:
    """Microseconds of a call of each, in turns: so many calls of one, then of the next; then the other way round."""
    for call in calls.values():
        for _ in range(warm_up):
            call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name, call in list(calls.items())[:: 1 if turn % 2 == 0 else -1]:
            start = time.perf_counter()
            for _ in range(count):
                call()
            found[name].append((time.perf_counter() - start) / count * 1e6)
    return found


def _own(fn: Any, name: str) -> Any:
    """The same with a code object of its own: several compiled ones would share Dynamo's cache, and its guards."""
    if isinstance(fn, types.FunctionType):
        code = fn.__code__.replace(co_name=name.replace(".", "_").replace(" ", "_"))
        return types.FunctionType(code, fn.__globals__, name, fn.__defaults__, fn.__closure__)
    fn.__class__ = type(type(fn).__name__, (type(fn),), {"forward": _own(type(fn).forward, name)})
    return fn


def step(contestant: str, model_name: str) -> dict[str, Any]:
    """Milliseconds of a training step, the median of 60, and how many graphs and regions there are; on one thread."""
    import torch

    torch.set_num_threads(1)
    model, inputs = models.zoo(model_name)
    model.train()
    expected = _trained(model, model, inputs)
    before = contestants.graphs_so_far()
    compiled = contestants.compiler(contestant)(model)
    _must_agree(contestant, _trained(compiled, model, inputs), expected)

    def run() -> None:
        compiled(**inputs).loss.backward()
        model.zero_grad()

    rounds = _in_rounds({contestant: run}, rounds=60, count=1, warm_up=5)[contestant]
    found = {"ms": statistics.median(rounds) / 1e3, **contestants.parts(contestant, compiled, before)}
    # A first call may go another way than those that were timed, and these had the same inputs.
    others = {id(value): value.flip(-1) if isinstance(value, torch.Tensor) else value for value in inputs.values()}
    inputs = {name: others[id(value)] for name, value in inputs.items()}  # what was the same tensor twice still is
    _must_agree(contestant, _trained(compiled, model, inputs), _trained(model, model, inputs))
    if contestants.parts(contestant, compiled, before)["graphs"] != found["graphs"]:
        raise RuntimeError(f"{contestant} compiled {model_name} again: what was checked is not what was timed")
    return found


def _trained(call: Callable[..., Any], model: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """The loss and the gradients of one call, which are taken off the model."""
    loss = call(**inputs).loss
    loss.backward()
    found = [loss.detach(), *_gradients(model)]
    model.zero_grad()
    return found


def _gradients(model: Any) -> list[Any]:
    return [parameter.grad for parameter in model.parameters()]


def _must_agree(contestant: str, got: Iterable[Any], expected: Iterable[Any]) -> None:
    """That it is the same computation: how exactly it agrees is what the tests are for."""
    import torch

    for mine, eager in zip(got, expected, strict=True):
        torch.testing.assert_close(
            mine, eager, rtol=1e-2, atol=1e-4, msg=lambda text: f"{contestant} is not eager: {text}"
        )


def memory(contestant: str, way: str) -> dict[str, float]:
    """The most MiB that the process ever had, having compiled and run a model of a gigabyte once."""
    import resource

    import torch

    if way == "whole Modules":
        torch._dynamo.config.inline_inbuilt_nn_modules = False
    model, x = models.gigabyte()
    compile_by = contestants.compiler(contestant)
    before = contestants.graphs_so_far()
    compiled = compile_by(model)
    with torch.no_grad():
        got = compiled(x)
        found = {"MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
        _must_agree(contestant, [got], [model(x)])
    # Whole Modules are called as they are, and thunder has no part in it.
    contestants.parts(contestant, compiled, before, given_away=0 if way == "inline" else None)
    return found


def kept(contestant: str, layers: str) -> dict[str, float]:
    """KiB of Python objects that a compiled model holds, all that goes with it and a reset; a smaller one went before.

    Of thunder_fx also what forget() frees of it, the records, and what goes when it is dropped, without a reset.
    """
    _kept(contestant, 1)
    return _kept(contestant, int(layers))


def _kept(contestant: str, layers: int) -> dict[str, float]:
    import tracemalloc

    import torch

    compile_by = contestants.compiler(contestant)
    model, inputs = models.llama(layers)
    torch._dynamo.reset()
    tracemalloc.start()
    before = contestants.graphs_so_far()
    compiled = compile_by(model)
    compiled(**inputs).loss.backward()
    model.zero_grad()
    whole = _traced()
    contestants.parts(contestant, compiled, before)
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


def lookup(kind: str, count: str) -> dict[str, list[float]]:
    """Microseconds of last_backend(fn), and of a WeakKeyDictionary alone, with so many live entries; 30 rounds.

    Each round asks for 1,000 of them, spread over all, or for the same ones again where there are fewer.
    """
    import weakref

    import thunder_fx

    backend = thunder_fx.ThunderCompiler()
    compiled = [_registered(kind, backend) for _ in range(int(count))]
    bare: Any = weakref.WeakKeyDictionary(dict.fromkeys(compiled, backend))
    wanted = (compiled[:: max(1, len(compiled) // 1000)] * 1000)[:1000]

    def ask(look_up: Callable[[Any], Any]) -> None:
        for fn in wanted:
            look_up(fn)

    calls = {"thunder_fx": functools.partial(ask, thunder_fx.last_backend), "bare": functools.partial(ask, bare.get)}
    found = _in_rounds(calls, rounds=30, count=1, warm_up=1)
    return {name: [us / len(wanted) for us in rounds] for name, rounds in found.items()}


def _registered(kind: str, backend: Any) -> Any:
    """A compiled callable of whom the table knows."""
    import torch

    import thunder_fx

    if kind == "function":
        compiled: Any = types.FunctionType(models.tiny.__code__, {})
        thunder_fx.register(compiled, backend)
        return compiled
    compiled = torch.nn.Identity()
    if kind == "Module compiled in place":
        compiled.compile(backend=backend)
    else:
        compiled = torch.compile(compiled, backend=backend)
    assert thunder_fx.last_backend(compiled) is backend
    return compiled


def imports(module: str) -> dict[str, float]:
    """Seconds to import a module in a process that has imported nothing but time."""
    program = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {"seconds": float(done.stdout)}


if __name__ == "__main__":
    print("RESULT " + json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
