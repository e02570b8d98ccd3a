"""What reproducers carry: it needs torch alone, and no name of one module stands for something else in another."""

import ast
import collections
import pathlib
import sys

from thunder_fx import portable
from thunder_fx.repro import runner

MODULES = sorted(pathlib.Path(portable.__file__).parent.glob("*.py"))


def trees():
    return {path.name: ast.parse(path.read_text()) for path in (*MODULES, pathlib.Path(runner.__file__))}


def test_only_torch_and_the_standard_library_are_imported():
    """And one another, which are all in the script."""
    for name, tree in trees().items():
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for imported in names:
                ours = imported.startswith("thunder_fx.portable") or imported == "thunder_fx._placeholders"
                # runner.py compiles by thunder, and measures by pytest-benchmark, where it is asked to.
                top = imported.partition(".")[0]
                known = top in ("torch", *sys.stdlib_module_names)
                assert known or ours or (name == "runner.py" and top in ("thunder", "pytest")), f"{name}: {imported}"


def test_no_name_is_defined_twice():
    """They share one namespace in a script."""
    names = collections.Counter(
        node.name if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else target.id
        for tree in trees().values()
        for node in tree.body
        for target in (getattr(node, "targets", None) or [getattr(node, "target", None)])
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) or isinstance(target, ast.Name)
    )
    assert len(names) > 30
    assert {name for name, count in names.items() if count > 1} <= {"__all__"}
