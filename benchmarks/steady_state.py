"""A steady-state call of a small function, beside thunder.dynamo's, torch.compile's and eager's, in one process.

    python benchmarks/steady_state.py [limit]     exits 0 if both ratios to thunder.dynamo are at most the limit (0.5)

Microseconds are the best of several rounds, the rounds of all contestants taking turns, on one thread. Ratios are what
counts: times are this machine's, at this moment.
"""

from __future__ import annotations

import sys
import time
import warnings

import thunder_fx  # first: from here on, `import thunder` works on every torch

warnings.simplefilter("ignore")

import thunder.dynamo.compiler as peer  # noqa: E402
import torch  # noqa: E402

from thunder_fx import _torch  # noqa: E402

ROUNDS, CALLS, WARM_UP = 15, 1000, 1000


def function(x):
    return torch.sin(x) + 1


def mend_peer():
    """thunder 0.2.6 fails on torch 2.12 and later unless the split graph's code is generated at once."""
    split = peer._splitter

    def eager_split(*args, **kwargs):
        with _torch.eager_graph_modules():
            return split(*args, **kwargs)

    peer._splitter = eager_split


def contestants():
    yield "thunder_fx", thunder_fx.thunderfx
    yield "thunder.dynamo", peer.thunderfx
    yield "torch.compile", torch.compile
    yield "eager", lambda fn: fn


def measure(requires_grad: bool) -> dict[str, float]:
    """Microseconds per call."""
    x = torch.rand(8, requires_grad=requires_grad)
    calls = {}
    for name, prepare in contestants():
        # A code object of its own for each: they would share Dynamo's cache, and its guards.
        def own(x):
            return function(x)

        own.__code__ = own.__code__.replace(co_name=name.replace(".", "_"))
        compiled = prepare(own)
        for _ in range(WARM_UP):
            compiled(x)
        calls[name] = compiled
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, compiled in calls.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                compiled(x)
            best[name] = min(best[name], (time.perf_counter() - start) / CALLS * 1e6)
    return best


def main() -> None:
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
    mend_peer()
    torch.set_num_threads(1)
    ratios = []
    for requires_grad in (False, True):
        best = measure(requires_grad)
        ratios.append(best["thunder_fx"] / best["thunder.dynamo"])
        times = ", ".join(f"{name} {microseconds:.1f} us" for name, microseconds in best.items())
        print(f"{'with' if requires_grad else 'without'} gradients: {times}")
        print(f"  ratio to thunder.dynamo {ratios[-1]:.2f} (limit {limit})")
    sys.exit(max(ratios) > limit)


if __name__ == "__main__":
    main()
