"""profile(): the time of each region, measured when asked for, and a callable that is as before."""

import pytest
import torch

from tests.helpers import Block, needs_cxx, splits
from thunder_fx import explain, get_subgraph_info, thunderfx


def regions_of(compiled):
    (info,) = get_subgraph_info(compiled)
    return [getattr(info.split_graph_module, region.name) for region in info.regions]


@needs_cxx
def test_each_region_has_its_time(tmp_path):
    """Forward and backward; nothing was measured before, and nothing is after."""
    compiled, x = thunderfx(splits), torch.rand(1000, requires_grad=True)
    compiled(x)
    assert all(region.profile is None for region in explain(compiled).graphs[0].regions)
    calls = [module._call for module in regions_of(compiled)]
    found = explain(compiled).profile(x)
    for region in found.graphs[0].regions:
        assert set(region.profile) == {"forward", "backward"}
        assert all(0 < seconds < 1 for seconds in region.profile.values())
    assert "a call: forward" in str(found)
    assert found.to_dict()["graphs"][0]["regions"][0]["profile"]["forward"] > 0
    assert [module._call for module in regions_of(compiled)] == calls
    assert x.grad is None
    assert all(region.profile is None for region in explain(compiled).graphs[0].regions)


def test_gradients_of_a_models_parameters_are_nobodys():
    """They are computed, and not added."""
    model = Block()
    compiled = thunderfx(model)
    found = explain(compiled)  # not called yet: the first run compiles
    profiled = found.profile(torch.rand(3, 8))
    assert set(profiled.graphs[0].regions[0].profile) == {"forward", "backward"}
    assert all(parameter.grad is None for parameter in model.parameters())


def test_without_gradients_there_is_no_backward():
    """No output needs one."""
    compiled = thunderfx(lambda x: x * 2)
    compiled(torch.rand(3))
    assert set(explain(compiled).profile(torch.rand(3)).graphs[0].regions[0].profile) == {"forward"}


def test_inputs_that_raise_leave_the_callable_as_it_was():
    """The user's exception; the next call is right."""
    compiled = thunderfx(lambda x, i: x[i] * 2)
    compiled(torch.rand(3), torch.tensor([1]))
    calls = [module._call for module in regions_of(compiled)]
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        explain(compiled).profile(torch.rand(3), torch.tensor([9]))
    assert [module._call for module in regions_of(compiled)] == calls
    assert compiled(torch.ones(3), torch.tensor([1])).tolist() == [2.0]


def test_nothing_captured_is_said():
    """There is no region that could be measured."""
    compiled = thunderfx(lambda x: x)
    with pytest.raises(TypeError, match=r"no graph of .* was captured"):
        explain(compiled).profile(torch.rand(3))
