"""ThunderCompiler and its hook: what is recorded of a graph, also of one that fails."""

import warnings
import weakref

import pytest
import torch
from torch import nn

import thunder_fx
from tests.helpers import Block, assert_same_as_eager, needs_cxx, sine, splits
from thunder_fx import CompilerType, OptionError, ThunderCompiler, ThunderFXWarning, get_subgraph_info, thunderfx
from thunder_fx.compiler import live_compilers
from thunder_fx.options import installed_torch_compile_names


def test_options_are_the_users_in_dicts_of_its_own():
    """By thunder_options, by keywords, or both; nothing is added to what was given."""
    given = {"fusion_type": "consecutive"}
    compiler = ThunderCompiler(given, {"fullgraph": True}, cache="no caching")
    assert compiler.thunder_options == {"fusion_type": "consecutive", "cache": "no caching"}
    assert compiler.torch_compile_options == {"fullgraph": True}
    assert compiler.thunder_options is not given
    assert given == {"fusion_type": "consecutive"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ThunderCompiler(fullgraph=True),
            r"fullgraph= is torch.compile's option; write torch.compile\(fn, backend=",
        ),
        (lambda: ThunderCompiler(cach="x"), "did you mean 'cache'"),
        (lambda: ThunderCompiler(None, {"cache": "no caching"}), "cache= is thunder.jit's option"),
        (lambda: ThunderCompiler(3), "thunder_options= takes a dict; found 3"),
        (lambda: ThunderCompiler(None, 3), "torch_compile_options= takes a dict; found 3"),
        (lambda: ThunderCompiler(None, {1: 2}), "unknown option 1"),
        (lambda: ThunderCompiler(backend="inductor"), "backend= is refused"),
    ],
)
def test_wrong_options_are_told_where_they_go(make, message):
    """A misplaced or misspelt name is an error at once."""
    with pytest.raises(OptionError, match=message):
        make()


@needs_cxx
def test_it_stands_alone_as_a_backend():
    """With torch.compile's own mode= and options=, which reach Inductor's regions, and with those given to it."""
    seen = []
    options = {"post_grad_custom_pre_pass": seen.append, "fx_graph_cache": False}
    backend = ThunderCompiler()
    assert_same_as_eager(torch.compile(splits, backend=backend, options=options), splits, torch.randn(4))
    assert seen
    seen.clear()
    torch._dynamo.reset()
    own = ThunderCompiler(torch_compile_options={"options": options})
    assert_same_as_eager(torch.compile(splits, backend=own), splits, torch.randn(4))
    assert seen


@needs_cxx
def test_the_record_of_a_split_graph():
    """thunder.dynamo's seven names, and ours, each against what is known of the function by hand."""
    compiled = thunderfx(splits)
    compiled(torch.randn(4, requires_grad=True))
    (info,) = get_subgraph_info(compiled)
    assert [n.name for n in info.original_graph_module.graph.nodes][1:5] == ["sin", "sinc", "cos", "add"]
    names = ["thunder_0", "inductor_1", "thunder_2"]
    for graph in (info.original_split_graph_module, info.split_graph_module):
        assert [n.target for n in graph.graph.find_nodes(op="call_module")] == names
    assert [r.name for r in info.regions] == names
    assert [r.nodes for r in info.regions] == [("sin",), ("sinc",), ("cos", "add")]
    assert [r.compiler.name for r in info.regions] == ["THUNDER", "TORCH_INDUCTOR", "THUNDER"]
    assert [r.compilations for r in info.regions] == [1, 1, 1]
    assert [[i.name for i in r.example_inputs] for r in info.regions] == [["l_x_"], ["sin"], ["l_x_", "sinc"]]
    assert len(info.thunder_compiled_fns) == 2
    assert info.thunder_compiled_fns_example_inputs == [list(info.regions[i].example_inputs) for i in (0, 2)]
    assert list(info.submodule_to_compiled_functions) == [
        info.original_split_graph_module.get_submodule(name) for name in names
    ]
    compiled_by = [f.compiler for f in info.submodule_to_compiled_functions.values()]
    assert compiled_by == [CompilerType.THUNDER, CompilerType.TORCH_INDUCTOR, CompilerType.THUNDER]
    (reason,) = info.split_reasons
    assert reason.node == "sinc"
    assert "sinc" in reason.info
    assert "automatic torch fallback" in reason.info
    assert reason.source.endswith(", in splits")
    assert info.error is None
    x = info.regions[0].example_inputs[0]
    assert (x.shape, x.strides, x.dtype, x.requires_grad, x.is_tensor) == ((4,), (1,), torch.float32, True, True)
    assert repr(info).startswith("SubgraphInfo(graph_id=")


def test_the_captured_graph_is_kept_apart_from_what_runs():
    """Nothing reachable from what Dynamo holds reaches original_graph_module, and it is as Dynamo captured it."""
    seen = []

    class Spy(ThunderCompiler):
        def __call__(self, graph_module, example_inputs, **kwargs):
            before = str(graph_module.graph)
            compiled = super().__call__(graph_module, example_inputs, **kwargs)
            seen.append((before, weakref.ref(graph_module)))
            return compiled

    def unused(x):
        with torch.autocast("cpu", torch.bfloat16):
            pass  # a rewrite takes this away
        return x.sin() + 1

    backend = Spy()
    torch.compile(unused, backend=backend)(torch.ones(3))
    (info,) = backend.subgraph_infos
    ((before, graph_module),) = seen
    assert str(info.original_graph_module.graph) == before
    assert "autocast" in before
    assert info.original_graph_module is not graph_module()
    assert "grapharg" not in str([n.meta for n in info.original_graph_module.graph.nodes])


def test_parameters_are_shared_and_not_copied():
    """Where a graph has parameters as attributes, the records hold the Module's own."""
    block = Block(16)
    graph_module = torch.fx.symbolic_trace(block)
    compiler = ThunderCompiler()
    x = torch.randn(2, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ThunderFXWarning)  # a hand-made graph has no fake values
        compiled = compiler(graph_module, [x])
    torch.testing.assert_close(compiled(x), block(x))
    (info,) = compiler.subgraph_infos
    mine = {p.data_ptr() for p in block.parameters()}
    for graph in (info.original_graph_module, info.original_split_graph_module):
        assert {p.data_ptr() for p in graph.parameters()} == mine


@needs_cxx
def test_a_region_that_fails_when_it_runs_keeps_its_error():
    """The others keep theirs (none), the traces so far stay, and the exception is the operator's own."""

    @torch.library.custom_op("thunder_fx_tests::boom", mutates_args=())
    def boom(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("boom in an operator")

    boom.register_fake(torch.empty_like)
    compiled = thunderfx(lambda x: boom(x.sin() + 1).cos() + 1)
    with pytest.raises(RuntimeError, match="boom in an operator"):
        compiled(torch.randn(3))
    (info,) = get_subgraph_info(compiled)
    assert [r.error for r in info.regions] == [None, "RuntimeError: boom in an operator", None]
    assert len(thunder_fx.last_traces(compiled)) == 1
    assert info.error is None


def test_a_wrong_option_that_torch_compile_hands_over_is_recorded():
    """With a ThunderCompiler of the user's, Inductor's options come only when the first graph does."""
    backend = ThunderCompiler()
    compiled = torch.compile(sine, backend=backend, options={"nope": 1})
    with pytest.raises(Exception, match="a name that Inductor does not know: 'nope'"):
        compiled(torch.ones(3))
    (info,) = backend.subgraph_infos
    assert info.error.startswith("OptionValueError: ")
    assert info.seconds is not None


def test_a_shared_compiler_warns_near_the_limit_too():
    """Modules compiled in place have no isolate_recompiles: the ninth would get no graph, without a word."""
    with torch._dynamo.config.patch(recompile_limit=2):
        models = [Block() for _ in range(2)]
        for model in models:
            model.compile(backend=ThunderCompiler())
        models[0](torch.ones(2, 8))
        with pytest.warns(ThunderFXWarning, match=r"recompile_limit \(2\) allows"):
            models[1](torch.ones(2, 8))


def test_compiling_what_can_get_no_graph_any_more_warns():
    """At the call, before anything runs eager in silence."""

    def fn(x):
        return x.sin()

    options = {"isolate_recompiles": False} if "isolate_recompiles" in installed_torch_compile_names() else {}
    with torch._dynamo.config.patch(recompile_limit=1):
        torch.compile(fn, backend="eager")(torch.ones(3))
        with pytest.warns(ThunderFXWarning, match="What is compiled of it next gets no graph"):
            thunderfx(fn, **options)


def test_a_subclass_stays_itself_in_copies():
    """By deepcopy, with the same options."""
    import copy

    class Own(ThunderCompiler):
        pass

    twin = copy.deepcopy(Own(cache="no caching"))
    assert type(twin) is Own
    assert twin.thunder_options == {"cache": "no caching"}


def test_a_failing_transform_is_recorded_and_raised():
    """It is a failure of the user's code, and so no reason to give the region to Inductor."""
    from thunder.core.transform_common import Transform

    class Boom(Transform):
        def transform_traces_pre_prologue(self, *args, **kwargs):
            raise RuntimeError("boom in a transform")

    compiled = thunderfx(sine, transforms=[Boom()])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="boom in a transform"):
            compiled(torch.randn(3))
    infos = get_subgraph_info(compiled)
    assert all(i.regions[0].error == "RuntimeError: boom in a transform" for i in infos)
    assert all(i.regions[0].compiler is CompilerType.THUNDER for i in infos)


def test_a_backend_that_raises_leaves_its_record(monkeypatch):
    """SubgraphInfo is there from capture on, with the error's text and no traceback."""

    def broken(graph_module, *args, **kwargs):
        raise ZeroDivisionError("in the pipeline")

    monkeypatch.setattr(thunder_fx.compiler.partition, "split", broken)
    compiled = thunderfx(sine)
    with pytest.raises(Exception, match="in the pipeline"):
        compiled(torch.ones(3))
    (info,) = get_subgraph_info(compiled)
    assert info.error == "ZeroDivisionError: in the pipeline"
    assert info.original_graph_module.graph.find_nodes(op="call_method", target="sin")
    assert info.split_graph_module is None
    assert info.regions == []


@needs_cxx
def test_inductor_failing_on_a_region_runs_it_eager(monkeypatch):
    """Recorded, warned about, and right."""

    def broken(*args, **kwargs):
        raise RuntimeError("no C++ today")

    monkeypatch.setattr(torch._inductor, "compile", broken)
    compiled = thunderfx(splits)
    x = torch.randn(4)
    with pytest.warns(ThunderFXWarning, match="no C.. today. Falling back to eager for the region inductor_1"):
        torch.testing.assert_close(compiled(x), splits(x))
    (info,) = get_subgraph_info(compiled)
    assert [r.name for r in info.regions] == ["thunder_0", "eager_1", "thunder_2"]
    assert info.regions[1].compiler is CompilerType.EAGER
    assert info.regions[1].error == "RuntimeError: no C++ today"
    assert [n.target for n in info.split_graph_module.graph.find_nodes(op="call_module")] == [
        r.name for r in info.regions
    ]
    with pytest.warns(ThunderFXWarning, match="Falling back to eager"):
        assert_same_as_eager(compiled, splits, x)


def test_dynamos_control_flow_passes_and_leaves_no_record(monkeypatch):
    """Where Dynamo asks to trace again through an exception, the attempt is no failure and no graph."""
    real, attempts = thunder_fx.compiler.partition.split, []

    def once(*args, **kwargs):
        attempts.append(1)
        if len(attempts) == 1:
            raise torch._dynamo.exc.SkipFrame("not this frame")
        return real(*args, **kwargs)

    monkeypatch.setattr(thunder_fx.compiler.partition, "split", once)
    compiled = thunderfx(sine)
    torch.testing.assert_close(compiled(torch.ones(3)), sine(torch.ones(3)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ThunderFXWarning)
        assert get_subgraph_info(compiled) == []


def test_live_compilers_and_graph_ids_tell_what_was_compiled_since():
    """For whoever was not there when it was compiled."""
    mark = max((i.graph_id for c in live_compilers() for i in c.subgraph_infos), default=-1)
    backend = ThunderCompiler()
    compiled = thunderfx(sine)
    compiled(torch.ones(2)), torch.compile(Block(), backend=backend)(torch.ones(2, 8))
    since = [i for c in live_compilers() for i in c.subgraph_infos if i.graph_id > mark]
    assert {i.source.function for i in since} == {"sine", "forward"}


def test_a_module_that_trains_gets_eagers_gradients():
    """Parameters' gradients and running statistics of a small network, in training and after."""
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    import copy

    other = copy.deepcopy(eager)
    compiled = thunderfx(other)
    x = torch.randn(2, 3, 8, 8)
    for training in (True, False):
        eager.train(training), other.train(training)
        torch.testing.assert_close(compiled(x), eager(x))
        eager(x).pow(2).sum().backward(), compiled(x).pow(2).sum().backward()
        for a, b in zip(eager.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-4)
    for a, b in zip(eager.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(b, a)
