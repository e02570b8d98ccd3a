"""The text of a reproducer: which graph, how it was compiled and what is known of it, put into the template.

Where the files go is bundle.py's; what every script ends with is runner.py, word for word.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.metadata
import inspect
import pkgutil
import platform
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jinja2
import torch
from torch.fx import GraphModule

import thunder_fx.portable
from thunder_fx import _placeholders
from thunder_fx.graph import inplace, modes, partition, randomness, regions, structure
from thunder_fx.repro import MARK, runner
from thunder_fx.repro import inputs as inputs_as_code
from thunder_fx.repro.code import Source, for_thunder
from thunder_fx.repro.values import Inexpressible, Writer, indented
from thunder_fx.subgraph import CompilerType, RecordedInputs, Region, State, SubgraphInfo

COMPILER_NAMES = {
    CompilerType.THUNDER: "thunder",
    CompilerType.TORCH_INDUCTOR: "inductor",
    CompilerType.EAGER: "eager",
}


@dataclass
class Script:
    """A file of a bundle, and the tensors that it loads.

    `problems` say what a person has to supply before it runs as it was; `notes` what is not as it was, though it runs.
    """

    name: str
    title: str
    compiler: str
    error: str | None
    text: str = ""
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    region: str | None = None
    kind: str = "repro"


@dataclass(frozen=True)
class Request:
    """What is the same for all scripts of a bundle."""

    thunder_options: Mapping[str, Any]
    torch_compile_options: Mapping[str, Any]
    real_inputs: bool
    benchmark: bool
    # What options' objects were before anything was compiled, by their ids.
    states: Mapping[int, dict[str, Any]] = field(default_factory=dict)


def of_graph(info: SubgraphInfo, index: int, request: Request) -> Script:
    """The script of a whole graph: compiled region by region, as it was."""
    graph_module = info.original_graph_module
    assert graph_module is not None
    compilers = [_tried(region) for region in info.regions]
    split = info.original_split_graph_module
    error = info.error or next((region.error for region in info.regions if region.error), None)
    script = Script(
        f"graph{index}", f"Graph {index} of {info.source or 'a callable'}, the whole of it.", "thunder", error
    )
    if split is None:
        script.notes.append("the graph was not split when its compilation ended: here thunder compiles all of it")
    else:
        script.compiler = compilers[0] if len(set(compilers)) == 1 else "recorded"
    return _write(script, graph_module, info, info.state, info._inputs, request, split)


def of_region(info: SubgraphInfo, index: int, region: Region, request: Request) -> Script:
    """The script of one region, by the compiler that ran it, or that failed to."""
    split = info.original_split_graph_module
    assert split is not None
    graph_module = partition.region_graph(split, region.name)
    name = f"graph{index}_{region.name}"
    title = f"Region {region.name} of graph {index} of {info.source or 'a callable'}: {operators(len(region.nodes))}."
    script = Script(name, title, _tried(region), region.error, region=region.name)
    state = state_at_regions(info)[region.name]
    return _write(script, graph_module, info, state, region._inputs, request, None)


def _tried(region: Region) -> str:
    return COMPILER_NAMES[region._failed_by or region.compiler]


def state_at_regions(info: SubgraphInfo) -> dict[str, State]:
    """The state in which each region begins: a region before it may have set whether autograd records."""
    split = info.original_split_graph_module
    assert split is not None
    state, found = info.state, {}
    for region in info.regions:
        found[region.name] = state
        after = modes.grad_mode_after(partition.region_graph(split, region.name))
        state = state if after is None else dataclasses.replace(state, is_grad_enabled=after)
    return found


def _write(
    script: Script,
    graph_module: GraphModule,
    info: SubgraphInfo,
    state: State,
    recorded: RecordedInputs | None,
    request: Request,
    split: GraphModule | None,
) -> Script:
    source = Source(Writer(_names_of_a_script()))
    source.add(_graph_for(script.compiler if script.region else "recorded", graph_module, state), "Graph")
    settings = _settings(script, graph_module, state)
    if split is not None:
        settings += _add_split(source, split, info)
    made = inputs_as_code.of_graph(graph_module, _values(recorded, request, script), source.writer)
    settings += [f"computed={made.computed}"] if made.computed else []
    written = inplace.inputs_written(graph_module)
    settings += [f"written={written}"] if written else []
    options = {
        "thunder_options": _options("thunder.jit", request.thunder_options, script, request.states),
        "inductor_options": _options("torch._inductor.compile", info.inductor_options, script, request.states),
    }
    script.problems += dict.fromkeys([*source.problems, *made.problems, *source.writer.requirements.values()])
    script.tensors = {**source.constants, **made.files}
    script.kind = "benchmark" if request.benchmark else "repro"
    script.text = render(
        "script.py.jinja",
        title=_in_docstring(script.title),
        file=f"{script.name}_{script.kind}.py",
        name=script.name,
        benchmark=request.benchmark,
        writer=written_by(),
        facts=_facts(script, info, request),
        runner_imports=_runner()[0],
        imports=[*source.writer.imports, *["import pytest"][: request.benchmark]],
        placeholders=_import_help(),
        requirements=[(line, repr(message)) for line, message in source.writer.requirements.items()],
        checks=[(condition, repr(message)) for condition, message in source.checks.items()],
        definitions=list(source.writer.definitions.values()),
        classes=source.classes,
        make_inputs=made.source(),
        options=options,
        runner=_runner()[1],
        settings=settings,
    )
    return script


@functools.cache
def _names_of_a_script() -> dict[str, Any]:
    """The names that every script has of itself: what a graph needs must not take one of them."""
    names = ("Graph", "Split", "make_inputs", "reproducer", "thunder_options", "inductor_options")
    own: dict[str, Any] = dict.fromkeys(names)
    for module in (runner, *_portable()):
        own.update((name, value) for name, value in vars(module).items() if not name.startswith("__"))
    return own


def _values(recorded: RecordedInputs | None, request: Request, script: Script) -> list[Any] | None:
    """The inputs that were recorded, if they were asked for; None, and a note, where they are to be made up."""
    if not request.real_inputs:
        return None
    note = recorded.note if recorded is not None else "no inputs were recorded: they are made up"
    script.notes += [note] if note else []
    return recorded.values if recorded is not None else None


def _graph_for(compiler: str, graph_module: GraphModule, state: State) -> GraphModule:
    return for_thunder(graph_module) if compiler == "thunder" and state.is_grad_enabled else graph_module


def _settings(script: Script, graph_module: GraphModule, state: State) -> list[str]:
    """The arguments of Reproducer that are not functions of the script."""
    differentiable = regions.differentiable_outputs(graph_module)
    settings = [
        "graph=Graph",
        "make_inputs=make_inputs",
        f"compiler={script.compiler!r}",
        "thunder_options=thunder_options",
        "inductor_options=inductor_options",
    ]
    optional = {
        "differentiable": differentiable if any(differentiable) and not all(differentiable) else None,
        "draws_random_numbers": any(map(randomness.draws, structure.calls(graph_module))) or None,
        "grad_enabled": None if state.is_grad_enabled else False,
        "autocast": [_Code(f"({device!r}, {dtype})") for device, dtype in state.autocasts] or None,
        "seed": state.seed,
        "unbacked": state.unbacked if any(state.unbacked) else None,
        "default_dtype": _Code(str(state.default_dtype)) if state.default_dtype is not torch.float32 else None,
    }
    return settings + [f"{name}={value!r}" for name, value in optional.items() if value is not None]


class _Code(str):
    """Code, whose repr is itself."""

    def __repr__(self) -> str:
        return str(self)


def _add_split(source: Source, split: GraphModule, info: SubgraphInfo) -> list[str]:
    """Write the regions of a graph, and what calls one after the other."""
    members = []
    states = state_at_regions(info)
    for region in info.regions:
        graph_module = partition.region_graph(split, region.name)
        name = "".join(part.capitalize() for part in region.name.split("_"))
        compiler = _tried(region)
        source.add(_graph_for(compiler, graph_module, states[region.name]), name)
        differentiable = regions.differentiable_outputs(graph_module)
        arguments = [f"{name}()", repr(compiler)]
        if any(differentiable) and not all(differentiable):
            arguments.append(repr(differentiable))
        members.append(f"self.{region.name} = compile({', '.join(arguments)})")
    source.add_split(split, members)
    return ["split=Split"]


def _options(
    receiver: str, options: Mapping[str, Any], script: Script, states: Mapping[int, dict[str, Any]]
) -> list[str]:
    """The body of a function that returns a dict of options, or stops with what a person has to supply.

    What the options need stands in the function, where it takes no name of the script's.
    """
    writer = Writer({"placeholders": None, "restored": runner.restored}, states)
    values, refused = [], []
    for name, value in options.items():
        try:
            values.append(f"    {name!r}: {writer.expression(value)},")
        except Inexpressible as error:
            refused.append(f"the option {name}= of {receiver} is {error}")
            values.append(f"    {name!r}: None,  # to be supplied")
    script.problems += [*refused, *writer.requirements.values()]
    lines = []
    if refused:
        message = "; ".join(refused) + ": put values for `to be supplied`, and delete this line"
        lines.append(f"raise SystemExit({message!r})")
    if writer.imports:
        lines += ["with placeholders():", *(f"    {line}" for line in writer.imports)]
    for line, message in writer.requirements.items():
        lines += [
            "try:",
            f"    {line}",
            "except ImportError as error:",
            f"    raise SystemExit({message!r}) from error",
        ]
    for text in writer.definitions.values():
        lines += ["", *text.split("\n"), ""]
    lines += ["return {", *values, "}"] if options else ["return {}"]
    return indented("\n".join(lines)).split("\n")


def _facts(script: Script, info: SubgraphInfo, request: Request) -> list[tuple[str, list[str]]]:
    """What a person wants to know before reading the code, by heading."""
    facts = []
    if script.region is None and info.regions:
        lines = [f"{r.name}: {operators(len(r.nodes))}, run by {r.compiler.name}" for r in info.regions]
        facts.append(("Regions", lines))
    if script.region is None and info.split_reasons:
        facts.append(("Not run by thunder", [f"{r.node}: {without_addresses(r.info)}" for r in info.split_reasons]))
    breaks = [info.graph_break_reason, info.recompile_reason]
    for heading, reason in zip(("The graph ends here, since", "It was compiled again, since"), breaks, strict=True):
        if script.region is None and reason:
            facts.append((heading, [reason]))
    if request.torch_compile_options:
        told = [f"{name}={value!r}" for name, value in request.torch_compile_options.items()]
        facts.append(("torch.compile was told (of which Inductor's own are below)", told))
    if script.error:
        facts.append(("Recorded error, which this script should raise again", script.error.splitlines()))
    if script.problems:
        facts.append(("TO BE SUPPLIED", script.problems))
    if script.notes:
        facts.append(("Not as it was", script.notes))
    return [(heading, [_in_docstring(line) for line in lines]) for heading, lines in facts]


def without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def operators(count: int) -> str:
    return f"{count} operator{'s' if count != 1 else ''}"


def _in_docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''").replace("\0", "\\0")


def written_by() -> str:
    return (
        f"thunder_fx {thunder_fx.__version__} on torch {torch.__version__}, lightning-thunder "
        f"{importlib.metadata.version('lightning-thunder')}, Python {platform.python_version()}"
    )


@functools.cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("thunder_fx.repro"), trim_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    return environment.get_template(name)


def render(template: str, **values: Any) -> str:
    """One of the templates in repro/templates, filled in."""
    return _template(template).render(**values)


@functools.cache
def _runner() -> tuple[str, str]:
    """What the second half of a script imports, and it: runner.py below its mark, and all of thunder_fx.portable."""
    imports, body = _imports_and_body(runner)
    sources = [MARK + body.partition(MARK)[2]]
    for module in _portable():
        more, source = _imports_and_body(module)
        imports |= more
        sources.append(source)
    plain = sorted(imports, key=lambda line: (line.startswith("from"), line.lower()))
    others = [line for line in plain if "thunder_fx" not in line and "__future__" not in line]
    return "\n".join(others), "\n\n\n".join(source.strip() for source in sources)


@functools.cache
def _portable() -> list[types.ModuleType]:
    names = sorted(found.name for found in pkgutil.iter_modules(thunder_fx.portable.__path__))
    return [importlib.import_module(f"thunder_fx.portable.{name}") for name in names]


def _imports_and_body(module: types.ModuleType) -> tuple[set[str], str]:
    """A module's imports, each by itself, and what comes after them."""
    source = inspect.getsource(module)
    imports = [node for node in ast.parse(source).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    lines = source.split("\n")
    return {ast.unparse(node) for node in imports}, "\n".join(lines[imports[-1].end_lineno or 0 :])


@functools.cache
def _import_help() -> str:
    """What the first half of a script needs, as source; thunder's import on newer torch among it."""
    names = f"NAMED_TENSOR_METHODS = {_placeholders.NAMED_TENSOR_METHODS!r}"
    functions = (_placeholders.placeholders, _placeholders._placeholder, runner.restored)
    return "\n\n\n".join([names, *(inspect.getsource(function).strip() for function in functions)])
