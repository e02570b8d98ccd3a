"""The import hook that lets `import thunder` succeed on a torch that has lost names thunder was written against.

Standard library only at import, and little of it: `import thunder_fx` comes here. Importing thunder itself, and using
what it has, is _thunder.py's. lightning-thunder 0.2.6 reads, while its modules execute,

    torch.Tensor.align_as, align_to, has_names, refine_names, rename    gone from torch 2.13 (named tensors)
    torch.autograd.Function.apply.__func__                              gone from torch 2.14 (apply is a builtin)

and nothing of them afterwards. A thunder release that no longer reads them makes this module unnecessary.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from typing import Any

NAMED_TENSOR_METHODS = ("align_as", "align_to", "has_names", "refine_names", "rename")


@contextlib.contextmanager
def placeholders() -> Iterator[None]:
    """While inside, torch has the names above; afterwards it is exactly as it was found."""
    import torch

    missing = [name for name in NAMED_TENSOR_METHODS if not hasattr(torch.Tensor, name)]
    function = torch.autograd.Function
    # Restored from the class's own dictionary: what attribute access gives is a bound method, not what is stored.
    owner = next(cls for cls in function.__mro__ if "apply" in vars(cls))
    replace_apply = not hasattr(function.apply, "__func__")
    stored = vars(function).get("apply")
    try:
        for name in missing:
            setattr(torch.Tensor, name, _placeholder(f"torch.Tensor.{name}"))
        if replace_apply:
            function.apply = classmethod(_delegating(vars(owner)["apply"]))  # type: ignore[assignment]
        yield
    finally:
        for name in missing:
            delattr(torch.Tensor, name)
        if replace_apply:
            if owner is function:
                function.apply = stored  # type: ignore[assignment,method-assign]
            else:
                del function.apply


def _placeholder(name: str):  # type: ignore[no-untyped-def]
    def placeholder(*args: object, **kwargs: object) -> None:
        raise NotImplementedError(f"{name} is a placeholder that is there only while thunder is imported")

    placeholder.__name__ = name.rpartition(".")[2]
    return placeholder


def _delegating(stored: Any) -> Callable[..., Any]:
    """Another thread may be training meanwhile, with a Function of its own: it gets what it would get without this."""

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        return stored.__get__(None, cls)(*args, **kwargs)

    return apply


# Neither is a subclass of importlib.abc's: to import that takes longer than all of this package.


class _Loader:
    """Executes a module as its own loader would, with the placeholders around it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps its own loader, so that inspect, pickle and pkgutil see nothing of this one.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        with placeholders():
            self._loader.exec_module(module)
        uninstall()


class _Finder:
    """Answers for the name `thunder` alone, until thunder has been imported once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "thunder":
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
                return spec
        return None


_finder = _Finder()


def install() -> None:
    """From here on, whoever imports thunder first finds the names that it needs. Does nothing once thunder is there."""
    if "thunder" not in sys.modules and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Take the finder away again; done by itself as soon as thunder has been imported."""
    with contextlib.suppress(ValueError):
        sys.meta_path.remove(_finder)
