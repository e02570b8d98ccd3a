"""thunder.dynamo's own objects, seen as ours: its compiled callable, and its ThunderCompiler given to torch.compile.

Reads them and nothing else; they go on as they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from thunder_fx import _thunder, _torch
from thunder_fx.compiler import ThunderCompiler
from thunder_fx.graph import partition, structure
from thunder_fx.subgraph import CompiledFunction, CompilerType, Region, SplitReason, SplitReasonType, SubgraphInfo

# One view of each, for as long as somebody asks.
_views: weakref.WeakKeyDictionary[Any, weakref.ref[PeerCompiler]] = weakref.WeakKeyDictionary()


def seen_as_ours(obj: object) -> PeerCompiler | None:
    """A ThunderCompiler that answers for one of thunder.dynamo's objects; None for any other object."""
    peer = _thunder.peer_compiler(obj)
    if peer is None:
        return None
    reference = _views.get(peer)
    view = reference() if reference is not None else None
    if view is None:
        view = PeerCompiler(peer)
        _views[peer] = weakref.ref(view)
    return view


class PeerCompiler(ThunderCompiler):
    """A thunder.dynamo.ThunderCompiler through our attributes: it compiles as it always did, and records for itself."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer
        self._infos: list[SubgraphInfo] = []
        self.thunder_options = dict(peer.thunder_options)
        self.torch_compile_options: dict[str, Any] = {}
        self.emptied = False
        # What its options were when it first compiled is not known.
        self._states = {}

    @property
    def subgraph_infos(self) -> list[SubgraphInfo]:  # type: ignore[override]
        for theirs in self._peer.subgraph_infos[len(self._infos) :]:
            self._infos.append(_info(theirs))
        return self._infos

    def __call__(self, graph_module: Any, example_inputs: Any, **kwargs: Any) -> Any:
        return self._peer(graph_module, example_inputs, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return PeerCompiler, (self._peer,)

    def __deepcopy__(self, memo: dict[int, Any]) -> PeerCompiler:
        return PeerCompiler(self._peer)

    def forget(self, *, stop_recording: bool) -> None:
        self._infos = []


def _info(theirs: Any) -> SubgraphInfo:
    """One of thunder.dynamo's records with our names; what it does not know stays None."""
    info = SubgraphInfo(
        theirs.original_graph_module,
        _split_by_our_names(theirs),
        theirs.split_graph_module,
        list(theirs.thunder_compiled_fns or ()),
    )
    for reason in theirs.split_reasons or ():
        kind = SplitReasonType[reason.reason_type.name]
        info.split_reasons.append(SplitReason(kind, reason.info or "", reason.exception))
    for name, (graph, compiled) in zip(
        _region_names(theirs.split_graph_module), theirs.submodule_to_compiled_functions.items(), strict=True
    ):
        kind_of_compiler = CompilerType[compiled.compiler.name]
        info.submodule_to_compiled_functions[graph] = CompiledFunction(compiled.compiled_fn, kind_of_compiler)
        info.regions.append(_region(name, graph, compiled.compiled_fn, kind_of_compiler))
        if kind_of_compiler is CompilerType.THUNDER:
            info.thunder_compiled_fns_example_inputs.append(list(info.regions[-1].example_inputs))
    return info


def _split_by_our_names(theirs: Any) -> Any:
    """Its split graph before compilation, a copy in which regions have the names that they got after it."""
    original = theirs.original_split_graph_module
    original = getattr(original, "split_graph_module", original)
    if original is None or theirs.split_graph_module is None:
        return original
    renamed = structure.copy_structure(original)
    for old, new in zip(_region_names(original), _region_names(theirs.split_graph_module), strict=True):
        if old != new:
            partition.rename_region(renamed, old, new)
    _torch.generate_code(renamed)
    return renamed


def _region_names(split_graph: Any) -> list[str]:
    return [str(node.target) for node in split_graph.graph.find_nodes(op="call_module")]


def _region(name: str, graph: Any, compiled: Callable[..., Any], compiler: CompilerType) -> Region:
    nodes = tuple(node.name for node in structure.calls(graph))
    return Region(name, compiler, nodes, structure.example_inputs(graph), _compiled=compiled)
