"""The lookups, and what they say where there is nothing to say."""

import warnings

import pytest
import torch
from torch import nn

import thunder_fx
from tests.helpers import TORCH, Block, needs_cxx, sine, splits
from thunder_fx import (
    CompilerType,
    ThunderCompiler,
    ThunderFXWarning,
    get_subgraph_info,
    last_backward_traces,
    last_prologue_traces,
    last_traces,
    thunderfx,
)

TRACES = [last_traces, last_backward_traces, last_prologue_traces]


@needs_cxx
def test_traces_are_the_final_ones_of_each_thunder_region_in_order():
    """thunder.last_traces of each region, the last stage; the region in between is Inductor's and has none."""
    import thunder

    compiled = thunderfx(splits)
    compiled(torch.randn(3, requires_grad=True)).sum().backward()
    (info,) = get_subgraph_info(compiled)
    first, second = info.thunder_compiled_fns
    assert last_traces(compiled) == [thunder.last_traces(first)[-1], thunder.last_traces(second)[-1]]
    assert last_backward_traces(compiled) == [thunder.last_backward_traces(f)[-1] for f in (first, second)]
    assert last_prologue_traces(compiled) == [thunder.last_prologue_traces(f)[-1] for f in (first, second)]
    assert "torch.sin" in str(last_traces(compiled)[0])
    assert "torch.cos" in str(last_traces(compiled)[1])


def test_without_gradients_there_is_no_backward_trace():
    """And no warning either: the function has been called."""
    compiled = thunderfx(sine)
    compiled(torch.ones(3))
    assert len(last_traces(compiled)) == 1
    assert last_backward_traces(compiled) == []


def test_infos_are_a_list_of_the_callers_own():
    """Changing it changes no record."""
    compiled = thunderfx(sine)
    compiled(torch.ones(3))
    get_subgraph_info(compiled).clear()
    assert len(get_subgraph_info(compiled)) == 1


def only_warning(lookup, compiled):
    """The text of the one warning that a lookup gives where there is no graph; the answer is []."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert lookup(compiled) == []
    (warning,) = caught
    assert warning.category is ThunderFXWarning
    assert warning.filename == __file__
    return str(warning.message)


@pytest.mark.parametrize(
    ("lookup", "words"),
    [
        (get_subgraph_info, "sine has not been called yet"),
        (last_traces, "Must invoke the function before using last_traces: sine has not been called yet"),
        (last_backward_traces, "last_backward_traces used before function invoked: sine has not been called yet"),
        (last_prologue_traces, "last_prologue_traces used before function invoked"),
    ],
)
def test_not_called_yet(lookup, words):
    """The words that thunder.dynamo's users know, and then the diagnosis."""
    assert words in only_warning(lookup, thunderfx(sine))


def test_diagnosis_frame_skipped():
    """Dynamo saw the function, and found nothing to capture."""

    def no_tensors(n):
        return n + 1

    compiled = thunderfx(no_tensors)
    assert compiled(1) == 2
    assert "its frame was skipped: Dynamo has seen its code" in only_warning(get_subgraph_info, compiled)


def test_a_function_is_not_inlined_into_itself():
    """Two callables of one function: that the one was called says nothing of the other."""
    called, other = thunderfx(sine), thunderfx(sine)
    called(torch.ones(3))
    assert "inlined" not in only_warning(get_subgraph_info, other)


def test_diagnosis_inlined():
    """A compiled function that only runs inside another has no graph of its own; the other is named."""
    inner = thunderfx(sine)

    def outer(x):
        return inner(x) * 2

    compiled = thunderfx(outer)
    compiled(torch.ones(3))
    text = only_warning(get_subgraph_info, inner)
    assert "inlined into an outer compiled callable: it is a part of outer" in text


@pytest.mark.parametrize("limit", ["recompile_limit", "accumulated_recompile_limit"])
def test_diagnosis_recompile_limit(limit):
    """Dynamo gives up silently; the compilation before that says it is coming, and a lookup says that it came."""

    def make(k):
        def scaled(x):
            return x.sin() * k

        return scaled

    options = {"isolate_recompiles": False} if "isolate_recompiles" in _torch_names() else {}
    compiled = [thunderfx(make(k), **options) for k in range(3)]
    with torch._dynamo.config.patch({"recompile_limit": 64, "accumulated_recompile_limit": 64, limit: 2}):
        compiled[0](torch.ones(2))
        with pytest.warns(
            ThunderFXWarning, match=rf"scaled .* has now been compiled as often as .*{limit} \(2\) allows"
        ):
            compiled[1](torch.ones(2))
        torch.testing.assert_close(compiled[2](torch.ones(2)), torch.ones(2).sin() * 2)
        assert f"Dynamo has reached torch._dynamo.config.{limit} (2)" in only_warning(get_subgraph_info, compiled[2])
    assert [len(get_subgraph_info(c)) for c in compiled[:2]] == [1, 1]


def _torch_names():
    from thunder_fx.options import installed_torch_compile_names

    return installed_torch_compile_names()


@pytest.mark.skipif(TORCH >= (2, 14), reason="torch captures its own layers from 2.14 on")
def test_diagnosis_container_compiled_in_place():
    """torch's own layers, compiled in place, are never captured; on a user's Module it works."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.compile(backend=ThunderCompiler())
    x = torch.randn(2, 4)
    torch.testing.assert_close(model(x), model[1](model[0](x)))
    text = only_warning(get_subgraph_info, model)
    assert "a Sequential Module is one of torch's own, compiled in place" in text
    own = Block()
    own.compile(backend=ThunderCompiler())
    own(torch.randn(2, 8))
    assert get_subgraph_info(own)


def test_diagnosis_stance():
    """torch.compiler.set_stance("force_eager") is named."""
    compiled = thunderfx(sine)
    with torch.compiler.set_stance("force_eager"):
        compiled(torch.ones(3))
        assert 'set_stance("force_eager") is in force' in only_warning(get_subgraph_info, compiled)


def test_each_graph_of_a_function_that_breaks():
    """Source, compile id, and why the graph ends where it does."""

    def breaks(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    compiled = thunderfx(breaks)
    compiled(torch.ones(3))
    first, second = get_subgraph_info(compiled)
    assert first.source.function == "breaks"
    assert first.source.file == __file__
    assert first.source.line == breaks.__code__.co_firstlineno
    assert "graph_break" in first.graph_break_reason
    assert f"{__file__}:{first.source.line + 2}" in first.graph_break_reason
    assert second.graph_break_reason is None
    assert second.source.function.startswith("torch_dynamo_resume_in_breaks")
    assert first.compile_id.split("/")[1] == second.compile_id.split("/")[1] == "0"
    assert first.compile_id != second.compile_id
    assert first.graph_id < second.graph_id
    assert first.seconds > 0


def test_recompile_reason_is_the_guard():
    """None for the first compilation; for the next, what changed."""
    compiled = thunderfx(sine, dynamic=False)
    compiled(torch.ones(3))
    compiled(torch.ones(4))
    first, second = get_subgraph_info(compiled)
    assert first.recompile_reason is None
    assert "size mismatch at index 0. expected 3, actual 4" in second.recompile_reason
    assert (first.compile_id.split("/")[0], "1") == tuple(second.compile_id.split("/"))


@pytest.mark.parametrize("module", [nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3))])
def test_source_of_torchs_own_modules_is_their_forward(module):
    """And not the frame that torch puts around them."""
    compiled = thunderfx(module)
    compiled(torch.ones(2, 3))
    (info,) = get_subgraph_info(compiled)
    assert info.source.function == "forward"
    assert "torch/nn/modules" in info.source.file


def test_graph_ids_increase_over_callables_and_resets():
    """Process-wide: who asks what was compiled since can sort by them."""
    first, second = thunderfx(sine), thunderfx(Block())
    first(torch.ones(3)), second(torch.ones(2, 8))
    torch._dynamo.reset()
    first(torch.ones(3))
    ids = [i.graph_id for i in get_subgraph_info(first)]
    assert len(ids) == 2
    assert ids[0] < get_subgraph_info(second)[0].graph_id < ids[1]


def test_dynamic_shapes_count_thunders_compilations():
    """One graph of Dynamo's, and thunder compiles again for each size."""
    compiled = thunderfx(lambda x: (x.sin() + 1).sum(), dynamic=True)
    for n in (3, 5, 7, 5):
        torch.testing.assert_close(compiled(torch.ones(n)), (torch.ones(n).sin() + 1).sum())
    (info,) = get_subgraph_info(compiled)
    (region,) = info.regions
    assert region.compiler is CompilerType.THUNDER
    assert region.compilations == 3
    tensor = next(i for i in region.example_inputs if i.is_tensor)
    assert tensor.shape == (3,)
    assert len(tensor.symbolic_shape) == 1


def test_lookups_do_not_compile():
    """Asking before, between and after changes nothing."""
    compiled = thunderfx(sine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for lookup in (get_subgraph_info, *TRACES):
            lookup(compiled)
    compiled(torch.ones(3))
    (info,) = get_subgraph_info(compiled)
    for lookup in TRACES:
        lookup(compiled)
    assert info.regions[0].compilations == 1
    assert thunder_fx.get_subgraph_info(compiled) == [info]


def test_diagnosis_recompile_limit_in_place():
    """A Module compiled in place: its code is forward's, though torch compiles what calls it."""

    class Ranks(nn.Module):
        def forward(self, x):
            return x.sin() + x.ndim

    with torch._dynamo.config.patch(recompile_limit=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = Ranks(), Ranks()
        for module, shapes in ((first, [(4,), (4, 1), (4, 1, 1)]), (second, [(4, 1, 1, 1)])):
            module.compile(backend=ThunderCompiler())
            for shape in shapes:
                module(torch.rand(shape))
    with torch._dynamo.config.patch(recompile_limit=2):
        assert "Dynamo has reached torch._dynamo.config.recompile_limit (2)" in only_warning(get_subgraph_info, second)
