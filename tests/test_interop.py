"""thunder.dynamo's own objects in our lookups."""

import pytest
import torch

import thunder_fx
from tests.helpers import Block, needs_cxx, run_python, sine, splits
from tests.repro.running import assert_agree
from thunder_fx import CompilerType, ThunderCompiler, forget, get_subgraph_info, last_backend, last_traces, thunderfx


@needs_cxx
def test_its_compiled_object_is_understood(peer):
    """Records, regions, reasons and traces, in our names."""
    compiled = peer.thunderfx(splits)
    compiled(torch.randn(3, requires_grad=True))
    (info,) = get_subgraph_info(compiled)
    assert isinstance(info, thunder_fx.SubgraphInfo)
    assert [(r.name, r.compiler) for r in info.regions] == [
        ("thunder_0", CompilerType.THUNDER),
        ("inductor_1", CompilerType.TORCH_INDUCTOR),
        ("thunder_2", CompilerType.THUNDER),
    ]
    assert info.regions[0].nodes == ("sin",)
    assert info.regions[0].compilations == 1
    assert ["sinc" in r.info for r in info.split_reasons] == [True]
    assert last_traces(compiled) == compiled.last_traces
    assert isinstance(last_backend(compiled), ThunderCompiler)
    assert get_subgraph_info(compiled) == [info]


def test_its_compiler_given_to_torch_compile_is_understood(peer):
    """For a function and for a Module compiled in place; both answer with one and the same view."""
    backend = peer.ThunderCompiler()
    compiled, model = torch.compile(sine, backend=backend), Block()
    model.compile(backend=backend)
    compiled(torch.ones(3))
    assert len(get_subgraph_info(compiled)) == 1
    model(torch.ones(2, 8))
    assert len(get_subgraph_info(model)) == 2
    assert last_backend(model) is last_backend(compiled)


def test_forgetting_it_leaves_its_own_records(peer):
    """We read them, and change nothing."""
    compiled = peer.thunderfx(sine)
    compiled(torch.ones(3))
    assert get_subgraph_info(compiled)
    forget(compiled)
    with pytest.raises(TypeError, match="forgotten"):
        last_backend(compiled)
    assert len(compiled._backend.subgraph_infos) == 1


def test_thunder_jit_alone_is_told_what_to_do():
    """thunder.jit's result has no ThunderCompiler: thunder.last_traces is for that."""
    import thunder

    with pytest.raises(thunder_fx.NotCompiledError, match="thunderfx"):
        get_subgraph_info(thunder.jit(sine))


def test_the_two_live_in_one_process():
    """Neither's compiling disturbs the other's."""
    run_python(
        "import torch, thunder_fx, thunder\n"
        "f = lambda x: x.sin() + 1\n"
        "a, b = thunder_fx.thunderfx(f), thunder.jit(f)\n"
        "x = torch.ones(3); torch.testing.assert_close(a(x), b(x)); torch.testing.assert_close(b(x), f(x))"
    )
    assert thunderfx is thunder_fx.thunderfx


@needs_cxx
def test_its_graphs_are_saved_as_reproducers_too(peer, tmp_path):
    """With its own regions and options."""
    compiled = peer.thunderfx(splits)
    compiled(torch.randn(3, requires_grad=True))
    bundle = thunder_fx.save_reproducer(compiled, tmp_path)
    assert len(bundle.scripts) == 4
    assert_agree(bundle)
