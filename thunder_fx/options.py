"""Which option goes where: the names that torch.compile and thunder.jit take, written out, and the messages.

Nothing here compiles. The names are typed so that an editor completes them; tests/test_options.py holds them against
the installed torch and thunder.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import TypedDict

from thunder_fx import _thunder
from thunder_fx.errors import OptionError, OptionValueError

if TYPE_CHECKING:
    from thunder.core.options import DebugOptions
    from thunder.core.transform_common import Transform
    from thunder.extend import Executor


class TorchCompileOptions(TypedDict, total=False):
    """The keyword-only names of torch.compile, `backend` left out; which of them exist depends on the torch."""

    fullgraph: bool
    dynamic: bool | None
    mode: str | None
    options: dict[str, Any] | None
    disable: bool
    name: str | None  # torch 2.13
    recompile_limit: int | None  # torch 2.13
    isolate_recompiles: bool  # torch 2.13
    shapes_spec: Any  # torch 2.13 only
    dynamic_shapes: Any  # torch 2.14


class ThunderOptions(TypedDict, total=False):
    """The keyword-only names of thunder.jit, and those that thunder's passes and executors look up by name."""

    langctx: Any
    executors: Iterable[Executor | str] | None
    sharp_edges: Any
    cache: Any
    disable_torch_autograd: bool
    transforms: Iterable[Transform] | None
    debug_options: DebugOptions | None
    # Looked up by name while compiling ("compile options" in thunder's words).
    auto_recompute_intermediates: bool
    cudnn_sdpa_bwd_may_cat_grad_qkv: bool
    disable_inplace_copy_check: bool
    disable_replace_uniform: bool
    fusion_type: str
    nv_disable_options: list[str]
    nv_enable_embedding: bool
    nv_enable_linear: bool
    nv_enable_matmul: bool
    nv_enable_options: list[str]
    nv_enable_scatter: bool
    nv_enable_sdpa: bool
    nv_enable_shape_only_fusion: bool
    nv_save_fake_inputs: bool
    nv_skip_cache: bool
    nv_store_fusion_inputs: bool
    sdpa_debug: bool
    skip_inplace_alias_updates: bool
    te_fp8_recipe: Any
    thunderfx_disable_split_autograd: bool
    torch_compile_fullgraph: bool
    use_apex_cross_entropy: bool


class Options(TorchCompileOptions, ThunderOptions, total=False):
    """Every keyword of thunderfx()."""

    thunder_options: Mapping[str, Any]


TORCH_COMPILE_NAMES = frozenset(TorchCompileOptions.__annotations__)
THUNDER_NAMES = frozenset(ThunderOptions.__annotations__)
_OWN_NAMES = frozenset({"thunder_options"})

# thunder.jit's defaults behind torch.compile, as thunder.dynamo (0.2.6) sets them: fusion by data flow, and no split of
# the autograd function, which can order collectives differently on different ranks.
THUNDER_DEFAULTS: Mapping[str, Any] = {"fusion_type": "dataflow", "thunderfx_disable_split_autograd": True}

# What thunder_fx sets itself for each region.
_RESERVED = {"is_differentiable_outputs": "thunder_fx reads it off each region's graph"}


@dataclass(frozen=True)
class Routed:
    """The user's options, each with its receiver, in containers of our own."""

    torch_compile: dict[str, Any] = field(default_factory=dict)
    thunder: dict[str, Any] = field(default_factory=dict)


@functools.cache
def installed_torch_compile_names() -> frozenset[str]:
    """The keyword-only names of the installed torch.compile, `backend` left out."""
    # Lightning replaces torch.compile by a wrapper of it; the names are those of the innermost one.
    parameters = inspect.signature(inspect.unwrap(torch.compile)).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY) - {"backend"}


def route(target: str, options: Mapping[str, Any]) -> Routed:
    """Split keywords by name between torch.compile and thunder.jit.

        route("thunderfx(foo)", {"fullgraph": True, "transforms": ()})

    A name that both take goes to both. `target` is what the messages call the callable. Raises OptionError (a
    TypeError) for an unknown or misplaced name, OptionValueError (a ValueError) for a value that cannot be right.
    """
    torch_compile: dict[str, Any] = {}
    thunder: dict[str, Any] = {}
    torch_names, thunder_names = installed_torch_compile_names(), THUNDER_NAMES | _thunder.jit_option_names()
    for name, value in options.items():
        if name in _OWN_NAMES:
            continue
        if name in torch_names:
            torch_compile[name] = value
        if name in thunder_names:
            thunder[name] = value
        if name not in torch_names | thunder_names:
            raise OptionError(_unknown(target, name, torch_names, thunder_names))
    thunder = merge_thunder_options(target, options.get("thunder_options"), thunder)
    return Routed(check_torch_compile_options(target, torch_compile), thunder)


def merge_thunder_options(
    target: str, explicit: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """thunder.jit's options from `thunder_options={...}`, where any name goes, and from keywords, as one new dict."""
    if explicit is None:
        explicit = {}
    if not isinstance(explicit, Mapping):
        raise OptionError(f"{target}: thunder_options= takes a dict of thunder.jit's options; found {shown(explicit)}")
    if twice := sorted(set(explicit) & set(keywords)):
        raise OptionError(f"{target}: given twice, as a keyword and in thunder_options=: {', '.join(twice)}")
    for name in explicit:
        if not isinstance(name, str):
            raise OptionError(f"{target}: thunder_options= takes a dict of options by name; found the name {name!r}")
        if name in TORCH_COMPILE_NAMES and name not in THUNDER_NAMES:
            raise OptionError(f"{target}: {name}= is torch.compile's option, and does not go in thunder_options=")
    merged = {**explicit, **keywords}
    _thunder.check_values(target, merged)
    for name, why in _RESERVED.items():
        if name in merged:
            raise OptionError(f"{target}: {name}= cannot be set: {why}")
    if merged.get("transforms") is not None:
        merged["transforms"] = _listed(target, "transforms", merged["transforms"])
        _thunder.check_transforms(target, merged["transforms"])
    if merged.get("executors") is not None:
        merged["executors"] = _listed(target, "executors", merged["executors"])
        _thunder.check_executors(target, merged["executors"])
    return merged


def _listed(target: str, name: str, value: Any) -> list[Any]:
    """The user's iterable as a list of our own: thunder.jit appends to it, and a generator can be read only once."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        found = shown(value)
        raise OptionError(f"{target}: {name}= takes a list (any iterable); found {found}; write {name}=[{found}]")
    return list(value)


_KINDS: Mapping[str, tuple[type, ...]] = {
    "fullgraph": (bool,),
    "dynamic": (bool,),
    "disable": (bool,),
    "isolate_recompiles": (bool,),
    "mode": (str,),
    "name": (str,),
    "recompile_limit": (int,),
}


def check_torch_compile_options(target: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options in a dict of our own; torch.compile pops from the `options=` that it is given."""
    checked = dict(options)
    for name, kinds in _KINDS.items():
        if not isinstance(checked.get(name), (*kinds, NoneType)):
            words = " or ".join(kind.__name__ for kind in kinds)
            raise OptionError(f"{target}: {name}= takes {words} or None; found {shown(checked[name])}")
    if checked.get("mode") is not None and checked.get("options") is not None:
        raise OptionValueError(f"{target}: torch.compile takes mode= or options=, not both; a mode is a set of options")
    if checked.get("options") is not None:
        if not isinstance(checked["options"], Mapping):
            found = shown(checked["options"])
            raise OptionError(f"{target}: options= takes a dict of Inductor's options; found {found}")
        if unnamed := [name for name in checked["options"] if not isinstance(name, str)]:
            raise OptionError(f"{target}: options= takes a dict of options by name; found the name {shown(unnamed[0])}")
        checked["options"] = dict(checked["options"])
    # Now, and not when the first region meets Inductor: a call that failed leaves nothing behind.
    inductor_options(target, checked.get("mode"), checked.get("options"), checked.get("dynamic"))
    return checked


# torch.compile takes these out of options= for itself; what is left is Inductor's.
_TORCH_COMPILE_OWN = frozenset({"guard_filter_fn", "use_aoti"})


def inductor_options(
    target: str, mode: str | None, options: Mapping[str, Any] | None, dynamic: bool | None = None
) -> dict[str, Any]:
    """What `mode=` and `options=` mean to Inductor, as a dict for torch._inductor.compile; {} where neither is given.

    Raises OptionValueError for a mode or an option that the installed Inductor does not know.
    """
    if mode in (None, "default") and not options:
        return {}
    import torch._inductor

    if options:
        own = {name.replace("-", "_"): value for name, value in options.items() if name not in _TORCH_COMPILE_OWN}
        known = torch._inductor.list_options()
        if unknown := sorted(set(own) - set(known)):
            raise OptionValueError(
                f"{target}: options= has a name that Inductor does not know: {unknown[0]!r}"
                f"{_nearest(unknown[0], known)}; torch._inductor.list_options() lists them"
            )
        return own
    modes = torch._inductor.list_mode_options()
    if mode not in modes:
        raise OptionValueError(f"{target}: mode= takes one of {', '.join(modes)}; found {mode!r}")
    return torch._inductor.list_mode_options(mode, dynamic)


def refuse_backend(target: str) -> OptionError:
    return OptionError(
        f"{target}: backend= is refused, since ThunderCompiler is the backend; for another one call torch.compile "
        "itself, or give a backend of your own making as torch.compile(fn, backend=ThunderCompiler(...))"
    )


def _unknown(target: str, name: str, torch_names: frozenset[str], thunder_names: frozenset[str]) -> str:
    if name in TORCH_COMPILE_NAMES:
        return f"{target}: {name}= is torch.compile's on another release; torch {torch.__version__} does not take it"
    if name == "backend":
        return str(refuse_backend(target))
    known = sorted(torch_names | thunder_names | _OWN_NAMES)
    return (
        f"{target}: unknown option {name!r}{_nearest(name, known)}; options are torch.compile's and thunder.jit's "
        f"keywords; what only an executor knows goes in thunder_options={{{name!r}: ...}}"
    )


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def states_of(options: Any) -> dict[int, dict[str, Any]]:
    """The attributes that the user's objects among option values have now, by the objects' ids.

    A transform may change itself while it compiles, and a reproducer is to begin where the first compilation did.
    """
    found: dict[int, dict[str, Any]] = {}
    pending, seen = [options], set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            pending.extend(value)
        elif _has_state_of_its_own(value):
            pending.extend(vars(value).values())
            found[id(value)] = {name: _copied(each) for name, each in vars(value).items()}
    return found


def _has_state_of_its_own(value: Any) -> bool:
    kind = type(value)
    is_known = kind.__module__.partition(".")[0] in ("builtins", "functools", "thunder", "torch", "types")
    return not is_known and not isinstance(value, (type, torch.nn.Module)) and isinstance(_vars(value), dict)


def _vars(value: Any) -> Any:
    try:
        return vars(value)
    except TypeError:
        return None


def _copied(value: Any, depth: int = 20) -> Any:
    """The same, with containers of its own: what is in them is in them from now on. One may contain itself."""
    if depth == 0 or type(value) not in (dict, list, tuple, set):
        return value
    if type(value) is dict:
        return {key: _copied(each, depth - 1) for key, each in value.items()}
    return type(value)(_copied(each, depth - 1) for each in value)


def describe_callable(fn: Callable[..., Any] | object) -> str:
    """What messages call a callable: a function's qualified name, a Module's class; not its repr, which can be long."""
    try:
        if isinstance(fn, torch.nn.Module):
            inner = fn._orig_mod if type(fn).__name__ == "OptimizedModule" else fn
            return f"a {'' if inner is fn else 'compiled '}{type(inner).__qualname__} Module"
        name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None)
        if isinstance(name, str):
            return name
        if isinstance(fn, functools.partial):
            return f"functools.partial of {describe_callable(fn.func)}"
    except Exception:  # an attribute of the user's that raises; a message about it must not
        return f"a {type(fn).__qualname__} object"
    return shown(fn)


def shown(value: object) -> str:
    """A value in a message: its repr, if that is short and does not raise."""
    try:
        text = repr(value)
    except Exception:
        text = ""
    return text if 0 < len(text) <= 60 else f"a {type(value).__qualname__} object"
