"""`import thunder_fx`, the public names, and the import hook for thunder."""

import ast
import inspect
import pathlib

import pytest
import torch

import thunder_fx
from tests.helpers import TORCH, run_python

ORDERS = [
    "import thunder_fx, torch, thunder",
    "import thunder_fx, thunder, torch",
    "import torch, thunder_fx, thunder",
    "import thunder_fx; thunder_fx.thunderfx; import thunder",
    "import thunder_fx, thunder.core.transform_common, thunder",
    "import thunder_fx; from thunder.transforms import ConstantFolding; import thunder",
]

STATE = """
import torch
def state():
    owners = (torch.Tensor, torch._C.TensorBase, torch.autograd.Function)
    return [sorted((name, id(value)) for name, value in vars(owner).items()) for owner in owners]
"""


def test_import_brings_neither_torch_nor_thunder():
    """`import thunder_fx` costs next to nothing: the pytest plugin to come lives in this package."""
    out = run_python(
        "import sys, thunder_fx; print([m for m in ('torch', 'thunder', 'numpy') if m in sys.modules]); "
        "dir(thunder_fx); thunder_fx.ThunderFXWarning; thunder_fx.config; print('torch' in sys.modules)"
    )
    assert out.split("\n")[:2] == ["[]", "False"]


@pytest.mark.parametrize("order", ORDERS)
def test_thunder_imports_in_any_order(order):
    """Once thunder_fx was imported, thunder imports, whoever imports it, and no finder stays behind."""
    out = run_python(
        f"{order}; import sys; print(thunder.jit(lambda x: x + 1)(torch.ones(1)).item() if 'torch' in dir() else 2.0); "
        "print([f for f in sys.meta_path if 'thunder_fx' in type(f).__module__])"
    )
    assert out.split("\n")[:2] == ["2.0", "[]"]


def test_torch_is_left_as_it_was_found():
    """The placeholders are gone after `import thunder`, and autograd.Function.apply is the very object it was."""
    code = (
        STATE
        + """
before, apply = state(), vars(torch.autograd.Function).get("apply")
import thunder_fx, thunder
assert state() == before
assert vars(torch.autograd.Function).get("apply") is apply
"""
    )
    run_python(code)
    assert hasattr(torch.Tensor, "align_as") == (TORCH < (2, 13))


def test_functions_of_autograd_work_while_thunder_is_imported():
    """Another thread may be training meanwhile, with a Function of its own: d(2x)/dx is 2."""
    code = """
import torch
from thunder_fx._placeholders import placeholders

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 2

x = torch.ones(3, requires_grad=True)
with placeholders():
    assert torch.autograd.Function.apply.__func__
    Twice.apply(x).sum().backward()
assert x.grad.tolist() == [2.0, 2.0, 2.0]
"""
    run_python(code)


def test_torch_is_left_as_it_was_found_by_an_import_that_fails():
    """A thunder that raises while it is imported leaves no placeholder, and the finder waits for the next try."""
    code = (
        STATE
        + """
import sys, tempfile, pathlib
before = state()
import thunder_fx
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "thunder.py").write_text("import torch; torch.Tensor.align_as; raise RuntimeError('half way')")
sys.path.insert(0, str(folder))
try:
    import thunder
except RuntimeError as error:
    assert str(error) == "half way"
else:
    raise AssertionError("no error")
assert state() == before
sys.path.remove(str(folder))
import thunder
assert thunder.jit and state() == before
"""
    )
    run_python(code)


@pytest.mark.skipif(TORCH < (2, 13), reason="thunder imports by itself there")
def test_thunder_tried_first_says_what_to_put_first():
    """An import of thunder that failed cannot be repeated; the error is an ImportError that says what to do."""
    out = run_python(
        "try:\n    import thunder\nexcept AttributeError: print('failed')\n"
        "import thunder_fx\n"
        "try:\n    thunder_fx.thunderfx\nexcept ImportError as error: print(type(error).__name__, error)"
    )
    assert out.startswith("failed\nCompatibilityError lightning-thunder could not be imported on torch")
    assert "Put `import thunder_fx` before the first `import thunder`, in a new process" in out


def test_thunder_keeps_its_own_loader():
    """pkgutil, inspect and pickle see thunder as if no hook had been there."""
    import thunder

    assert type(thunder.__spec__.loader).__name__ == "SourceFileLoader"
    assert thunder.__loader__ is thunder.__spec__.loader
    assert inspect.getsource(thunder.jit)


def test_public_names_are_all_there():
    """__all__, the lazy table and the imports for type checkers name the same things; each resolves."""
    for name in thunder_fx.__all__:
        assert getattr(thunder_fx, name) is not None
    assert sorted(thunder_fx._MODULE_OF) == sorted(thunder_fx.__all__)
    tree = ast.parse(pathlib.Path(thunder_fx.__file__).read_text())
    (typed,) = (node for node in tree.body if isinstance(node, ast.If))
    names = [(f.module.removeprefix("thunder_fx."), alias.name) for f in typed.body for alias in f.names]
    assert sorted(names) == sorted((module, name) for name, module in thunder_fx._MODULE_OF.items())
    assert set(thunder_fx.__all__) <= set(dir(thunder_fx))


def test_public_names_of_the_design():
    """The names that users were promised."""
    promised = (
        "thunderfx ThunderCompiler register forget compiled_callables last_backend get_subgraph_info last_traces "
        "last_backward_traces last_prologue_traces config SubgraphInfo Region SplitReason SplitReasonType CompilerType "
        "ExampleInput ThunderFXError ThunderFXWarning save_reproducer"
    )
    assert set(promised.split()) <= set(thunder_fx.__all__)


def test_unknown_name_is_an_attribute_error():
    """A misspelt name fails as it does on any module."""
    with pytest.raises(AttributeError, match="no attribute 'thunderfy'"):
        thunder_fx.thunderfy  # noqa: B018
    with pytest.raises(ImportError):
        from thunder_fx import thunderfy  # noqa: F401


def test_config_is_the_settings_and_not_a_module():
    """No submodule takes a public name's place, in whatever order they are imported."""
    for name in thunder_fx.__all__:
        assert not inspect.ismodule(getattr(thunder_fx, name))


def test_no_module_of_ours_imports_a_view_into_the_compile_path():
    """Data moves one way: what compiles knows nothing of the side table and of what reads it."""
    package = pathlib.Path(thunder_fx.__file__).parent
    views = {"registry", "inspection", "entry", "interop", "demo", "repro", "report"}
    compiling = [package / "compiler.py", package / "subgraph.py", package / "options.py", *package.glob("graph/*.py")]
    assert len(compiling) > 8
    for path in compiling:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("thunder_fx"):
                imported = {*node.module.split("."), *(alias.name for alias in node.names)}
                # thunder.dynamo's name on the compiler itself, what a failure leaves behind, torch's structured log.
                is_exempt = path.name == "compiler.py" and node.module.startswith("thunder_fx.rep")
                allowed = {"repro", "report"} if is_exempt else set()
                assert not imported & (views - allowed), f"{path.name} imports {imported & views}"


def test_private_names_are_touched_in_the_adapters_alone():
    """torch's and thunder's private modules are imported by _torch.py, _thunder.py and _quick.py, and nowhere else."""
    package = pathlib.Path(thunder_fx.__file__).parent
    for path in package.rglob("*.py"):
        if path.name in ("_torch.py", "_thunder.py", "_quick.py"):
            continue
        # Scripts have no adapters.
        is_in_scripts = path.name == "runner.py" or path.parent.name == "portable"
        in_scripts = ("torch._dynamo.debug_utils", "torch._guards", "torch.utils._python_dispatch")
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            for module in modules:
                private = any(part.startswith("_") and part != "__future__" for part in module.split("."))
                ours = module.startswith("thunder_fx")
                public_by_documentation = (is_in_scripts and module in in_scripts) or module in (
                    "torch._inductor",
                    "torch._subclasses.fake_tensor",
                )
                assert not private or ours or public_by_documentation, f"{path.name} imports {module}"
