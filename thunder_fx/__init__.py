"""thunder_fx: compile PyTorch by Lightning Thunder with one call, and look inside.

    import thunder_fx

    tfoo = thunder_fx.thunderfx(foo)
    tfoo(x)
    thunder_fx.get_subgraph_info(tfoo)

The public names are those of __all__. Each is imported when first used: `import thunder_fx` imports neither torch nor
thunder, and makes a later `import thunder` work on torch 2.13 and newer (_placeholders.py).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from thunder_fx import _placeholders

if TYPE_CHECKING:
    from thunder_fx._config import config
    from thunder_fx.compiler import ThunderCompiler
    from thunder_fx.entry import thunderfx
    from thunder_fx.errors import (
        CompatibilityError,
        ConfigError,
        MinifyError,
        NotCompiledError,
        OptionError,
        OptionValueError,
        RegistrationError,
        ReportError,
        ReproducerError,
        ThunderFXError,
        ThunderFXWarning,
        UncompilableError,
    )
    from thunder_fx.inspection import (
        get_subgraph_info,
        last_backend,
        last_backward_traces,
        last_prologue_traces,
        last_traces,
    )
    from thunder_fx.registry import compiled_callables, forget, register
    from thunder_fx.report.explanation import Explanation
    from thunder_fx.report.gather import explain
    from thunder_fx.repro.bundle import ReproducerBundle, save_reproducer
    from thunder_fx.repro.dumps import dump_on_error
    from thunder_fx.subgraph import CompilerType, ExampleInput, Region, SplitReason, SplitReasonType, SubgraphInfo

__version__ = "0.1.0"

__all__ = [
    "CompatibilityError",
    "CompilerType",
    "ConfigError",
    "ExampleInput",
    "Explanation",
    "MinifyError",
    "NotCompiledError",
    "OptionError",
    "OptionValueError",
    "Region",
    "RegistrationError",
    "ReportError",
    "ReproducerBundle",
    "ReproducerError",
    "SplitReason",
    "SplitReasonType",
    "SubgraphInfo",
    "ThunderCompiler",
    "ThunderFXError",
    "ThunderFXWarning",
    "UncompilableError",
    "compiled_callables",
    "config",
    "dump_on_error",
    "explain",
    "forget",
    "get_subgraph_info",
    "last_backend",
    "last_backward_traces",
    "last_prologue_traces",
    "last_traces",
    "register",
    "save_reproducer",
    "thunderfx",
]

# Where each public name lives; tests hold it against __all__ and the imports above.
_HOME = {
    "compiler": ["ThunderCompiler"],
    "_config": ["config"],
    "entry": ["thunderfx"],
    "errors": [
        "CompatibilityError",
        "ConfigError",
        "MinifyError",
        "NotCompiledError",
        "OptionError",
        "OptionValueError",
        "RegistrationError",
        "ReportError",
        "ReproducerError",
        "ThunderFXError",
        "ThunderFXWarning",
        "UncompilableError",
    ],
    "inspection": [
        "get_subgraph_info",
        "last_backend",
        "last_backward_traces",
        "last_prologue_traces",
        "last_traces",
    ],
    "registry": ["compiled_callables", "forget", "register"],
    "report.explanation": ["Explanation"],
    "report.gather": ["explain"],
    "repro.bundle": ["ReproducerBundle", "save_reproducer"],
    "repro.dumps": ["dump_on_error"],
    "subgraph": ["CompilerType", "ExampleInput", "Region", "SplitReason", "SplitReasonType", "SubgraphInfo"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

_placeholders.install()


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'thunder_fx' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"thunder_fx.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
