"""profile(): the time of each region, measured when asked for, and a callable that is as before."""

import functools

import pytest
import torch

import thunder_fx
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


def test_what_made_the_inputs_is_left_alone():
    """A graph of the user's that leads to an input, or to what a closure holds, can still be gone through backward."""
    layer = torch.nn.Linear(3, 3)
    given = layer(torch.rand(2, 3)).tanh()
    held = layer(torch.rand(2, 3)).tanh()
    compiled = thunderfx(lambda x: x * 2 * held)
    found = explain(compiled).profile(given)
    assert set(found.graphs[0].regions[0].profile) == {"forward", "backward"}
    (given.sum() + held.sum()).backward()
    assert layer.weight.grad is not None


def test_bound_methods_and_partials_are_found_again():
    """They are objects of the moment."""

    class Held:
        @thunderfx
        def method(self, x, factor=2):
            return x * factor

    held = Held()
    assert explain(held.method).profile(torch.rand(3)).graphs[0].regions[0].profile
    assert explain(functools.partial(held.method, factor=3)).profile(torch.rand(3)).graphs[-1].regions[0].profile


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def test_what_could_not_be_timed_is_said():
    """Inputs that overlap run eager."""
    base = torch.arange(8.0)
    compiled = thunderfx(lambda a, b: a.mul_(2) + b)
    compiled(base[:4], base[4:])
    with pytest.warns(thunder_fx.ThunderFXWarning, match="ran eager since inputs overlap"):
        explain(compiled).profile(base[:4], base[2:6])


def test_what_compiles_anew_in_each_call_is_said():
    """Dynamo guards on a Module's number, whatever it is."""
    compiled = thunderfx(Counting())
    with pytest.warns(thunder_fx.ThunderFXWarning, match="compiles anew in each call"):
        explain(compiled).profile(torch.rand(3))


def test_nothing_captured_is_said():
    """There is no region that could be measured."""
    compiled = thunderfx(lambda x: x)
    with pytest.raises(TypeError, match=r"no graph of .* was captured"):
        explain(compiled).profile(torch.rand(3))
