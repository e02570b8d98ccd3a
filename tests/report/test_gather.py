"""explain(): each field beside a graph whose answer is known by hand."""

import gc
import inspect
import json
import time
import weakref

import pytest
import torch

import thunder_fx
from tests.helpers import Block, needs_cxx, sine, splits
from tests.repro import faults
from thunder_fx import explain, get_subgraph_info, thunderfx

# thunder lacks sinc and i0.
SEVEN = "4 of 7 regions exist only because of it"


def seven_regions(x):
    a = torch.sinc(x.sin())
    b = torch.special.i0(a.cos())
    c = torch.sinc(b.exp())
    return c * 2


def explained(fn, *calls, **options):
    compiled = thunderfx(fn, **options)
    for inputs in calls:
        compiled(*inputs)
    return compiled, explain(compiled)


@needs_cxx
def test_what_an_operator_costs():
    """The places of each, and the regions that are there only because of it, the most costly first."""
    _, found = explained(seven_regions, (torch.rand(4),))
    assert [str(cost) for cost in found.costs] == [
        f"sinc: 2 places, {SEVEN}",
        "special_i0: 1 place, 2 of 7 regions exist only because of it",
    ]
    assert (found.operators, found.share_of_thunder) == (7, 4 / 7)
    assert found.summary().split("\n")[-2].strip() == f"fix first  sinc: 2 places, {SEVEN}"


@needs_cxx
@needs_cxx
def test_operators_in_one_region_cost_something_together():
    """Neither alone keeps thunder from having one region."""
    _, found = explained(lambda x: torch.special.i0(torch.sinc(x.sin())).cos(), (torch.rand(4),))
    assert [str(cost) for cost in found.costs] == [
        "sinc and special_i0: 2 places, 2 of 3 regions exist only because of it",
        "sinc: 1 place, and no region exists only because of it",
        "special_i0: 1 place, and no region exists only because of it",
    ]
    assert "fix first  sinc and special_i0" in found.summary()


@needs_cxx
def test_regions_splits_and_the_values_between_them():
    """sin and cos are thunder's, sinc between them is not."""
    _, found = explained(splits, (torch.rand(4, requires_grad=True),))
    (graph,) = found.graphs
    assert (graph.function, graph.compile_id, graph.nodes) == ("splits", "0/0", 4)
    assert (graph.file, graph.line) == (splits.__code__.co_filename, splits.__code__.co_firstlineno)
    assert [(region.name, region.compiler, [o.target for o in region.operators]) for region in graph.regions] == [
        ("thunder_0", "thunder", ["sin"]),
        ("inductor_1", "inductor", ["sinc"]),
        ("thunder_2", "thunder", ["cos", "add"]),
    ]
    (split,) = graph.splits
    assert (split.operator, split.region, split.type) == ("sinc", "inductor_1", "MISSING_OP_SUPPORT")
    assert "only has an automatic torch fallback in thunder" in split.reason
    assert "0x" not in split.reason
    assert split.source.endswith("in splits")
    edges = {(edge.start, edge.end, edge.dtype, edge.shape) for edge in graph.edges}
    assert edges == {
        ("thunder_0", "inductor_1", "float32", (4,)),
        ("inductor_1", "thunder_2", "float32", (4,)),
    }
    (given,) = graph.inputs
    assert (given.shape, given.dtype, given.requires_grad) == ((4,), torch.float32, True)


def test_executors_and_traces():
    """Which executor runs how many operators, from the final traces; each stage by its pass, and its code."""
    _, found = explained(lambda x: x.sin() * 2, (torch.rand(4, requires_grad=True),))
    (region,) = found.graphs[0].regions
    # Forward sin and mul; backward mul, cos and mul.
    assert region.executors == {"torch": 5}
    assert region.forward[0].name == "Tracing"
    assert "Dead Code Elimination" in [stage.name for stage in region.forward]
    assert "torch.sin(" in region.forward[-1].code
    assert "torch.cos(" in region.backward[-1].code
    assert region.prologue
    assert {"compile", "first call", "tracing", "passes"} <= region.seconds.keys()
    assert all(value >= 0 for value in region.seconds.values())


def test_options_and_where_each_went():
    """thunder.jit's, torch.compile's, and those that Inductor's regions get too."""
    _, found = explained(sine, (torch.rand(4),), executors=["torch"], mode="reduce-overhead", dynamic=False)
    told = {option.name: (option.value, option.receiver) for option in found.options}
    assert told == {
        "executors": ("['torch']", "thunder.jit"),
        "mode": ("'reduce-overhead'", "torch.compile, and Inductor's regions"),
        "dynamic": ("False", "torch.compile, and Inductor's regions"),
    }
    backend = thunder_fx.ThunderCompiler(torch_compile_options={"fullgraph": True, "dynamic": True})
    compiled = torch.compile(sine, backend=backend)
    compiled(torch.rand(4))
    told = {option.name: option.receiver for option in explain(compiled).options}
    assert told == {
        "fullgraph": "nobody: torch.compile was called without thunder_fx",
        "dynamic": "Inductor's regions",
    }


def test_graph_breaks():
    """Why a graph ends, and why the next one begins there."""

    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    _, found = explained(broken, (torch.rand(4),))
    first, second = found.graphs
    assert "torch._dynamo.graph_break()" in first.graph_break
    assert (first.previous_break, second.graph_break) == (None, None)
    assert second.previous_break == first.graph_break


def test_breaks_are_told_apart():
    """Where only what follows the first of two breaks is compiled again, that one is what it follows."""

    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        z = y * y.shape[0]
        torch._dynamo.graph_break()
        return z.cos()

    compiled, _ = explained(broken, (torch.rand(4),), (torch.rand(5),))
    for graph in explain(compiled).graphs:
        if graph.function.startswith("torch_dynamo_resume_in_"):
            line = graph.function.rpartition("_at_")[2]
            assert graph.previous_break.strip().endswith(f":{line})"), (graph.function, graph.previous_break)


class Ranks(torch.nn.Module):
    def forward(self, x):
        return x.sin() + x.ndim


def test_the_limit_is_that_of_the_code_which_is_nearest_to_it():
    """What follows a graph break; a Module compiled in place; a limit of the callable's own."""

    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y * y.ndim

    shapes = [(4,), (4, 1), (4, 1, 1)]
    with torch._dynamo.config.patch(recompile_limit=8):
        compiled, found = explained(broken, *((torch.rand(shape),) for shape in shapes))
        assert (found.limit.used, found.limit.limit) == (3, 8)
        module = Ranks()
        module.compile(backend=thunder_fx.ThunderCompiler())
        for shape in shapes:
            module(torch.rand(shape))
        assert (explain(module).limit.used, explain(module).recompiles) == (3, 2)
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        compiled = thunderfx(lambda x: x.sin() + x.ndim, recompile_limit=2)
        compiled(torch.rand(shapes[0]))
        with pytest.warns(thunder_fx.ThunderFXWarning, match="as often as"):
            compiled(torch.rand(shapes[1]))
        assert (explain(compiled).limit.limit, explain(compiled).limit.is_reached) == (2, True)


def test_callables_that_share_a_compiler():
    """Whose the graphs are is said, and of one that has not been called, that."""
    backend = thunder_fx.ThunderCompiler()
    first, second = torch.compile(sine, backend=backend), torch.compile(inner, backend=backend)
    first(torch.rand(3))
    assert explain(first).note is None
    assert explain(second).note.startswith("inner has not been called yet: these are graphs of others")
    second(torch.rand(3))
    assert explain(first).note == "the graphs are those of all callables of its ThunderCompiler"
    assert "the graphs are those of all callables" in explain(first).summary()


def test_recompiles_dynamic_sizes_and_the_limit():
    """The guard that failed, the sizes that may differ, and how near Dynamo is to giving up."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=3):
        compiled, found = explained(lambda x: x * x.shape[0], (torch.rand(4),))
        assert (found.recompiles, found.limit.used, found.limit.is_near, found.limit.is_reached) == (0, 1, True, False)
        compiled(torch.rand(5))
        found = explain(compiled)
        assert (found.recompiles, found.limit.used) == (1, 2)
        first, second = found.graphs
        assert first.recompile is None
        assert "size mismatch at index 0" in second.recompile
        (tensor,) = (each for each in second.inputs if each.is_tensor)
        assert tensor.symbolic_shape == tuple(s for s in tensor.symbolic_shape if s.startswith("s"))
        assert "near the limit" in found.summary()
        with pytest.warns(thunder_fx.ThunderFXWarning, match="as often as"):
            compiled(torch.rand(6, 2))
        assert explain(compiled).limit.is_reached
        assert "LIMIT REACHED" in explain(compiled).summary()


def test_a_region_that_thunder_compiles_again_and_again_is_warned_of():
    """Once for each size: from the third on it is worth a word."""
    compiled, found = explained(lambda x: x * 2, (torch.rand(4),), dynamic=True)
    for size in (5, 6):
        compiled(torch.rand(size))
    (region,) = explain(compiled).graphs[0].regions
    assert region.compilations == 3
    assert region.warning.startswith("thunder compiled it 3 times, once for each set of sizes")
    assert "thunder compiled it 3 times" in explain(compiled).summary()
    assert found.graphs[0].regions[0].warning is None


def test_a_region_that_failed():
    """With its error, in the summary too."""
    compiled, inputs = faults.does_not_compile_in_thunder()
    with pytest.raises(RuntimeError, match="boom in a transform"):
        compiled(*inputs)
    found = explain(compiled)
    (region,) = found.graphs[0].regions
    assert region.error == "RuntimeError: boom in a transform"
    assert "FAILED     RuntimeError: boom in a transform" in found.summary()


def test_a_graph_that_was_not_split(monkeypatch):
    """Its error, and its nodes."""
    from thunder_fx.graph import partition

    def fails(*args):
        raise RuntimeError("no split today")

    monkeypatch.setattr(partition, "split", fails)
    compiled = thunderfx(sine)
    with pytest.raises(Exception, match="no split today"):
        compiled(torch.ones(3))
    (graph,) = explain(compiled).graphs
    assert (graph.error, graph.nodes, graph.regions) == ("RuntimeError: no split today", 2, ())
    assert "not compiled" in explain(compiled).summary()


def test_seconds_are_those_of_the_phases():
    """Dynamo's own, ours, and thunder's first calls; their sum is the total."""
    _, found = explained(sine, (torch.rand(4),))
    seconds = found.seconds
    assert {"dynamo", "rewrite", "support", "split", "compile", "first calls"} <= seconds.keys()
    assert seconds["total"] == pytest.approx(sum(value for name, value in seconds.items() if name != "total"))
    (info,) = get_subgraph_info(_)
    assert sum(info.phases.values()) <= info.seconds


def test_overlapping_calls_are_told():
    """They ran eager."""
    base = torch.arange(8.0)
    compiled = thunderfx(lambda a, b: a.mul_(2) + b)
    compiled(base[:4], base[2:6])
    assert explain(compiled).graphs[0].overlapping_calls == 1
    assert "1 call ran eager, since inputs overlapped" in str(explain(compiled))


# Where nothing was captured, the first line says what the lookups' warning says.


def inner(x):
    return x + 1


def test_nothing_was_captured_not_called():
    """A callable that nobody has called yet."""
    found = explain(thunderfx(sine))
    assert found.graphs == ()
    assert str(found).startswith("nothing was captured: sine has not been called yet")


def test_nothing_was_captured_skipped():
    """No tensor operation in it."""
    compiled = thunderfx(lambda x: x)
    compiled(torch.rand(3))
    assert "its frame was skipped" in str(explain(compiled)).replace("\n", " ")


def test_nothing_was_captured_inlined():
    """It is a part of another's graph."""
    compiled = thunderfx(inner)

    def outer(x):
        return compiled(x) * 2

    of_outer = thunderfx(outer)
    of_outer(torch.rand(3))
    assert "inlined into an outer compiled callable" in str(explain(compiled)).replace("\n", " ")


def test_nothing_was_captured_limit_reached():
    """Other callables of the same code have used it up."""

    def make(factor):
        def scaled(x):
            return x * factor

        return thunderfx(scaled, isolate_recompiles=False) if _HAS_ISOLATION else thunderfx(scaled)

    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=64, accumulated_recompile_limit=2):
        compiled = [make(n) for n in (2.5, 3.5, 4.5)]
        compiled[0](torch.rand(3))
        with pytest.warns(thunder_fx.ThunderFXWarning, match="has now been compiled as often as"):
            compiled[1](torch.rand(3))
        compiled[2](torch.rand(3))
        assert "accumulated_recompile_limit (2)" in str(explain(compiled[2])).replace("\n", " ")


_HAS_ISOLATION = "isolate_recompiles" in inspect.signature(torch.compile).parameters


def test_nothing_was_captured_in_place():
    """A container of torch's own, compiled in place, has no graph before torch 2.14."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 3))
    module.compile(backend=thunder_fx.ThunderCompiler())
    module(torch.rand(2, 3))
    found = explain(module)
    if found.graphs:
        assert (found.limit.used, found.limit.used_by_all) == (1, 1)
    else:
        assert "is one of torch's own, compiled in place" in str(found).replace("\n", " ")


def test_nothing_was_captured_stance():
    """force_eager is in force."""
    compiled = thunderfx(lambda x: x * 3)
    with torch.compiler.set_stance("force_eager"):
        compiled(torch.rand(3))
        assert 'set_stance("force_eager") is in force' in str(explain(compiled)).replace("\n", " ")


def test_nothing_was_captured_after_forget():
    """A backend that was emptied."""
    backend = thunder_fx.ThunderCompiler()
    compiled = torch.compile(sine, backend=backend)
    compiled(torch.rand(3))
    thunder_fx.forget(compiled)
    assert "since forget() dropped what there was" in str(explain(compiled)).replace("\n", " ")


def test_an_unknown_callable_is_the_lookups_error():
    """As for the other free functions."""
    with pytest.raises(thunder_fx.NotCompiledError, match=r"thunderfx\(fn\)"):
        explain(sine)


# As data, and what it leaves alone


def test_it_is_json(tmp_path):
    """All of it, with the schema's version; traces are left out where not asked for."""
    _, found = explained(splits, (torch.rand(4),))
    data = json.loads(json.dumps(found.to_dict()))
    assert data["schema_version"] == 1
    region = data["graphs"][0]["regions"][0]
    assert (region["compiler"], region["executors"]["torch"]) == ("thunder", 1)
    assert "torch.sin" in region["forward"][-1]["code"]
    assert "code" not in found.to_dict(traces=False)["graphs"][0]["regions"][0]["forward"][0]
    assert data["graphs"][0]["inputs"] == [
        {
            "name": "L_x_",
            "dtype": "torch.float32",
            "shape": [4],
            "symbolic_shape": None,
            "strides": [1],
            "device": "cpu",
            "requires_grad": False,
        }
    ]


def test_it_compiles_nothing_and_keeps_no_callable():
    """Counters stay; an explanation that is kept does not keep what it explains."""
    compiled, found = explained(Block(), (torch.rand(3, 8),))
    compilations = [region.compilations for region in get_subgraph_info(compiled)[0].regions]
    frames = torch._dynamo.utils.counters["frames"]["total"]
    str(explain(compiled)), explain(compiled).to_dict()
    assert [region.compilations for region in get_subgraph_info(compiled)[0].regions] == compilations
    assert torch._dynamo.utils.counters["frames"]["total"] == frames
    gone, info = weakref.ref(compiled), weakref.ref(get_subgraph_info(compiled)[0])
    del compiled
    gc.collect()
    assert (gone(), info()) == (None, None)
    with pytest.raises(ReferenceError, match="is gone"):
        found.profile(torch.rand(3, 8))


@pytest.mark.slow
def test_a_model_of_twelve_layers_is_explained_in_no_time():
    """In 0.03 of its first call at most, with everything printed but the traces."""
    transformers = pytest.importorskip("transformers")
    settings = transformers.LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=12, num_attention_heads=4
    )
    settings._attn_implementation = "sdpa"
    model, ids = transformers.LlamaForCausalLM(settings), torch.randint(0, 256, (2, 32))
    compiled = thunderfx(model)
    start = time.perf_counter()
    compiled(ids, use_cache=False).logits.sum().backward()
    first_call = time.perf_counter() - start
    compilations = [region.compilations for info in get_subgraph_info(compiled) for region in info.regions]
    start = time.perf_counter()
    found = explain(compiled)
    found.to_dict(traces=False)
    assert time.perf_counter() - start <= 0.03 * first_call
    assert found.operators > 300
    assert compilations == [region.compilations for graph in found.graphs for region in graph.regions]


@needs_cxx
def test_thunder_dynamos_own_objects_are_explained(peer):
    """With what their records have: no seconds, and the node that was refused in a text alone."""
    theirs = peer.thunderfx(lambda x: torch.sinc(x.sin()) * 2)
    theirs(torch.rand(4))
    found = explain(theirs)
    assert [region.compiler for region in found.graphs[0].regions] == ["thunder", "inductor", "thunder"]
    assert str(found.costs[0]) == "sinc: 1 place, 2 of 3 regions exist only because of it"
    assert "compiled " not in found.summary()
    assert "sinc is not run by thunder" in str(found)
