"""Drawing the same random numbers again, in another dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what random operators draw; inside `again()` they give the same, in float64."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn: list[torch.Tensor] = []
        self._next: Iterator[torch.Tensor] | None = None

    def again(self) -> Draws:
        self._next = iter(self.drawn)
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            mask = self._drawn(lambda: func(*args, **kwargs)[1])
            scale = 1 / (1 - args[1]) if args[1] < 1 else 0.0
            return args[0] * mask * scale, mask
        if name.rstrip("_") not in _DRAWING:
            raise NotImplementedError(f"{name} draws random numbers that cannot be drawn again in float64")
        values = self._drawn(lambda: func(*args, **kwargs))
        if func._schema.is_mutable:
            return args[0].copy_(values)
        return values.double() if self._next is not None and values.is_floating_point() else values

    def _drawn(self, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
        if self._next is not None:
            return next(self._next)
        self.drawn.append(draw().detach().clone())
        return self.drawn[-1]


# Operators of torch.ops.aten whose result is what they draw: their arguments are shapes, bounds and probabilities.
_DRAWING = frozenset(
    {
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "normal_functional",
        "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random", "randperm",
        "uniform",
    }
)  # fmt: skip
