"""Nothing is left behind: a hundred cycles of compile, run, drop, with no call to torch._dynamo.reset()."""

import gc
import warnings

import pytest
import torch
from torch import nn

from tests.helpers import Block
from thunder_fx import ThunderCompiler, compiled_callables, forget, get_subgraph_info, thunderfx
from thunder_fx.graph.regions import CompiledRegion
from thunder_fx.subgraph import Region, SubgraphInfo

CYCLES = 100


@pytest.fixture(autouse=True)
def room_for_all_cycles():
    """Spent entries count to Dynamo's limits; the limit's own warning is tested elsewhere."""
    gc.collect()
    with torch._dynamo.config.patch(recompile_limit=4 * CYCLES, accumulated_recompile_limit=4 * CYCLES):
        yield


def alive():
    """How many objects of the kinds that belong to a compiled callable are alive."""
    gc.collect()
    kinds = (ThunderCompiler, SubgraphInfo, Region, torch.fx.GraphModule, CompiledRegion, nn.Parameter, nn.Module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # isinstance() wakes up deprecated attributes of torch's
        objects = gc.get_objects()
        return {kind.__name__: sum(1 for o in objects if issubclass(type(o), kind)) for kind in kinds}


def function_cycle():
    def fn(x):
        return x.sin() * 2 + 1

    compiled = thunderfx(fn)
    compiled(torch.ones(3, requires_grad=True)).sum().backward()
    assert len(get_subgraph_info(compiled)) == 1


def closure_cycle():
    weight = nn.Parameter(torch.ones(3))

    def fn(x):
        return x.sin() * weight

    compiled = thunderfx(fn)
    compiled(torch.ones(3)).sum().backward()
    assert len(get_subgraph_info(compiled)) == 1


def module_cycle():
    compiled = thunderfx(Block(4))
    compiled(torch.ones(2, 4)).sum().backward()
    assert len(get_subgraph_info(compiled)) == 1


def failing_transform_cycle():
    from thunder.core.transform_common import Transform

    class Boom(Transform):
        def transform_traces_pre_prologue(self, *args, **kwargs):
            raise RuntimeError("boom")

    compiled = thunderfx(Block(4), transforms=[Boom()])
    with pytest.raises(RuntimeError, match="boom"):
        compiled(torch.ones(2, 4))
    assert get_subgraph_info(compiled)[0].regions[0].error


@pytest.mark.parametrize("cycle", [function_cycle, closure_cycle, module_cycle, failing_transform_cycle])
def test_a_hundred_cycles_leave_nothing_alive(cycle):
    """No ThunderCompiler, info, region, graph, Module or parameter, and an empty table."""
    for _ in range(2):  # what is made once per process, by torch and by thunder
        cycle()
    before, table = alive(), len(compiled_callables())
    for _ in range(CYCLES if cycle is not failing_transform_cycle else 20):
        cycle()
    assert alive() == before
    assert len(compiled_callables()) == table


def test_in_place_compiled_modules_keep_their_compiler_until_forgotten():
    """Dynamo keeps the ThunderCompiler that it was given; forget() empties it, and so nothing else stays."""
    backends = []

    def cycle():
        model, backend = Block(4), ThunderCompiler()
        model.compile(backend=backend)
        model(torch.ones(2, 4)).sum().backward()
        assert len(get_subgraph_info(model)) == 1
        forget(model)
        backends.append(backend)

    cycle()
    before = alive()
    for _ in range(10):
        cycle()
    after = alive()
    assert after["SubgraphInfo"] == before["SubgraphInfo"]
    assert all(backend.subgraph_infos == [] for backend in backends)


def test_what_stays_is_a_stub():
    """Of a dropped callable Dynamo keeps its hook, which holds no option of the user's any more."""
    import weakref

    from thunder.transforms import ConstantFolding

    transform = ConstantFolding()
    compiled = thunderfx(Block(4), transforms=[transform])
    compiled(torch.ones(2, 4))
    reference = weakref.ref(transform)
    del compiled, transform
    gc.collect()
    assert reference() is None
