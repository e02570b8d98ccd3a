"""Nothing is left behind: a hundred cycles of compile, run, drop, with no call to torch._dynamo.reset()."""

import concurrent.futures
import gc
import linecache
import os
import pathlib
import subprocess
import sys
import unittest.mock
import warnings
import weakref

import pytest
import torch
from torch import nn

from tests.helpers import TORCH, Block
from tests.repro import faults
from thunder_fx import ThunderCompiler, compiled_callables, forget, get_subgraph_info, thunderfx
from thunder_fx.compiler import Hook, Settings
from thunder_fx.errors import ThunderFXWarning
from thunder_fx.graph import partition, regions
from thunder_fx.graph.regions import CompiledRegion
from thunder_fx.subgraph import Region, SubgraphInfo

CYCLES = 100
LIMITS = dict.fromkeys(("recompile_limit", "accumulated_recompile_limit"), 10 * CYCLES)  # eight threads of cycles


@pytest.fixture(autouse=True)
def room_for_all_cycles():
    """Spent entries count to Dynamo's limits; the limit's own warning is tested elsewhere."""
    gc.collect()
    with torch._dynamo.config.patch(LIMITS):
        yield


def alive():
    """How many objects of the kinds that belong to a compiled callable are alive."""
    for _ in range(2):  # a Module compiled in place is a cycle, and what was compiled for it goes after it
        gc.collect()
    kinds = (ThunderCompiler, SubgraphInfo, Region, torch.fx.GraphModule, CompiledRegion, nn.Parameter, nn.Module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # isinstance() wakes up deprecated attributes of torch's
        objects = gc.get_objects()
        found = {kind.__name__: sum(1 for o in objects if issubclass(type(o), kind)) for kind in kinds}
        return {**found, "Tensor": sum(1 for o in objects if type(o) is torch.Tensor)}  # inputs, outputs and gradients


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


def failing_region_cycle():
    compiled = thunderfx(lambda x, i: x[i].sin())
    with pytest.raises(IndexError):
        compiled(torch.ones(2), torch.tensor([9]))
    assert get_subgraph_info(compiled)[0].regions[0].error


def failing_backward_cycle():
    compiled, inputs = faults.fails_in_backward_of_thunder()
    with pytest.raises(RuntimeError, match="boom in backward"):
        compiled(*inputs).sum().backward()
    assert get_subgraph_info(compiled)[0].regions[0].error


def failing_compile_cycle():
    def fn(x):
        return x.sin() + 1

    compiled = thunderfx(fn)
    broken = unittest.mock.patch.object(partition, "split", side_effect=RuntimeError("boom"))
    with broken, pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="boom"):
        compiled(torch.ones(3))
    assert get_subgraph_info(compiled)[0].error


FAILING = (failing_compile_cycle, failing_transform_cycle, failing_region_cycle, failing_backward_cycle)
# In CI fewer of those that take long; `make test-slow` has all hundred.
FEWER = (10, pytest.param(CYCLES, marks=pytest.mark.slow))


OWN = ("ThunderCompiler", "SubgraphInfo", "Region", "CompiledRegion")


def assert_nothing_stays(cycle, count):
    first, table = alive(), len(compiled_callables())
    for _ in range(2):  # what is made once per process, by torch and by thunder
        cycle()
    before = alive()
    for _ in range(count):
        cycle()
    after = alive()
    assert after == before
    for kind in OWN:  # nor of the last one
        assert after[kind] <= first[kind], kind
    assert len(compiled_callables()) <= table


@pytest.mark.parametrize("cycle", [function_cycle, closure_cycle, module_cycle])
def test_a_hundred_cycles_leave_nothing_alive(cycle):
    """No ThunderCompiler, info, region, graph, Module, parameter or input, and an empty table."""
    assert_nothing_stays(cycle, CYCLES)


@pytest.mark.parametrize("count", FEWER)
@pytest.mark.parametrize("cycle", FAILING)
def test_failures_leave_nothing_alive(cycle, count):
    """In the backend, in a user's transform, in a region, and in its backward."""
    assert_nothing_stays(cycle, count)


@pytest.fixture
def one_process_group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("count", FEWER)
def test_modules_in_ddp_leave_nothing_alive(one_process_group, count):
    """Wrapped before they are compiled."""

    def cycle():
        model = nn.parallel.DistributedDataParallel(Block(4))
        compiled = thunderfx(model)
        compiled(torch.ones(2, 4)).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        assert get_subgraph_info(compiled)

    assert_nothing_stays(cycle, count)


@pytest.mark.parametrize("count", FEWER)
def test_threads_at_once_leave_nothing_alive(count):
    """Eight of them, each with cycles of its own."""

    def one():
        with torch._dynamo.config.patch(LIMITS):  # which holds for a thread
            function_cycle()

    def cycle():
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(one) for _ in range(8)]:
                done.result()

    assert_nothing_stays(cycle, count)


def test_an_info_that_is_kept_keeps_no_callable():
    """Nor the model, whose parameters are inputs of the graph."""
    model = Block(4)
    compiled = thunderfx(model)
    compiled(torch.ones(2, 4))
    (info,) = get_subgraph_info(compiled)
    gone = weakref.ref(compiled), weakref.ref(model)
    del compiled, model
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert info.regions[0].traces


def test_what_a_compiler_remembers_has_a_bound():
    """With a reset before each, a function could be compiled without end: the oldest of its graphs are let go."""
    compiled = thunderfx(lambda x: x.sin() * 2)
    with torch._dynamo.config.patch(accumulated_recompile_limit=3):
        for size in range(1, 6):
            torch._dynamo.reset()
            compiled(torch.ones(size))
    infos = get_subgraph_info(compiled)
    assert [info.regions[0].example_inputs[0].shape for info in infos] == [(3,), (4,), (5,)]


def test_graphs_that_may_be_called_again_are_all_remembered():
    """The bound is for each function: graph breaks, and functions that share a backend, have graphs of their own."""

    def broken(x):
        x = x.sin()
        torch._dynamo.graph_break()
        x = x.sin()
        torch._dynamo.graph_break()
        return x.sin()

    def other(x):
        return x + 1

    backend = ThunderCompiler()
    with torch._dynamo.config.patch(accumulated_recompile_limit=2):
        for fn in (broken, other):
            torch.compile(fn, backend=backend)(torch.ones(2))
    assert len(backend.subgraph_infos) == 3 + 1


def test_the_source_of_generated_code_goes_with_it():
    """thunder keeps it for tracebacks, which have it for as long as the code is there."""

    def sources():
        gc.collect()
        return [name for name in linecache.cache if name.startswith("thunder.")]

    before = sources()
    compiled = thunderfx(Block(4))
    compiled(torch.ones(2, 4)).sum().backward()
    assert len(sources()) == len(before) + 4  # prologue, computation, epilogue, backward
    del compiled
    assert sources() == before


def test_for_how_many_sizes_a_region_is_kept_compiled_has_a_bound(monkeypatch):
    """The oldest goes, with a word about it; it is compiled again if it comes back, and right all the same."""
    import thunder

    monkeypatch.setattr(regions, "MOST_SIZES", 3)
    compiled = thunderfx(lambda x: x.sin() * 2, dynamic=True)
    for size in (2, 3, 4):
        compiled(torch.ones(size))
    with pytest.warns(ThunderFXWarning, match="thunder_0 of .* for more than 3 sets of sizes"):
        compiled(torch.ones(5))
    (region,) = get_subgraph_info(compiled)[0].regions
    assert len(thunder.compile_stats(region._compiled).interpreter_cache) == 3
    assert region.compilations == 4
    for size, compilations in ((3, 4), (2, 5), (4, 5), (5, 5), (3, 6)):  # 2 takes the place of 3
        assert torch.equal(compiled(torch.ones(size)), torch.ones(size).sin() * 2)
        assert region.compilations == compilations


GROWTH = """
import gc, os, sys
import torch
from tests.helpers import Block
from thunder_fx import thunderfx

torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1000

def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

def cycle():
    model = Block(512)  # a megabyte: one that stays is far more than what Dynamo keeps of each
    if sys.argv[1] == "ours":
        compiled = thunderfx(model)
    else:
        compiled = torch.compile(model, backend="eager", isolate_recompiles=True)
    compiled(torch.ones(2, 512)).sum().backward()

for _ in range(100):  # before that the process still fills pages that it has got
    cycle()
before = resident()
for _ in range(100):
    cycle()
print((resident() - before) // 100)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    TORCH < (2, 13) or not sys.platform.startswith("linux"), reason="needs isolate_recompiles, and /proc"
)
def test_memory_grows_no_more_than_dynamo_alone_makes_it_grow():
    """Dynamo keeps guards, sources and metrics of all that it ever compiled, whoever compiles it."""
    root = str(pathlib.Path(__file__).parents[2])
    # glibc takes megabytes from the heap once some were freed, and a small block behind a free one keeps it resident:
    # the same code then grows by 70 to 830 kB a cycle. With a fixed threshold a freed megabyte goes back at once.
    settings = {"PYTHONPATH": root, "MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}
    grown = {}
    for who in ("ours", "dynamo"):
        command = [sys.executable, "-W", "ignore", "-c", GROWTH, who]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}, timeout=600)
        grown[who] = int(done.stdout)
    assert grown["ours"] <= grown["dynamo"], grown


@pytest.mark.parametrize("count", FEWER)
def test_in_place_compiled_modules_leave_their_compiler_alone(count):
    """Dynamo keeps the ThunderCompiler that it was given; forget() empties it, and what was compiled goes."""
    backends = []

    def cycle():
        model, backend = Block(4), ThunderCompiler()
        model.compile(backend=backend)
        model(torch.ones(2, 4)).sum().backward()
        assert len(get_subgraph_info(model)) == 1
        forget(model)
        backends.append(backend)

    table = len(compiled_callables())
    cycle()
    before = alive()
    for _ in range(count):
        cycle()
    after = alive()
    assert {**after, "ThunderCompiler": 0} == {**before, "ThunderCompiler": 0}
    assert all(backend.subgraph_infos == [] for backend in backends)
    assert len(compiled_callables()) <= table


def test_an_in_place_compiled_module_that_is_dropped_leaves_its_compiler_to_a_reset():
    """Without forget(): the Module and its parameters go at once, the ThunderCompiler with the reset."""
    model, backend = Block(4), ThunderCompiler()
    model.compile(backend=backend)
    model(torch.ones(2, 4)).sum().backward()
    assert len(get_subgraph_info(model)) == 1  # from then on the table has it
    gone = [weakref.ref(model), *map(weakref.ref, model.parameters())]
    compiler, table = weakref.ref(backend), len(compiled_callables())
    del model, backend
    alive()
    assert [reference() for reference in gone] == [None] * len(gone)
    assert len(compiled_callables()) == table - 1
    assert compiler() is not None
    torch._dynamo.reset()
    alive()
    assert compiler() is None


def test_a_shared_compiler_frees_what_belongs_to_a_dropped_function_alone():
    """The other goes on without being compiled again."""
    backend = ThunderCompiler()
    first = torch.compile(lambda x: x.sin() * 2, backend=backend)
    second = torch.compile(lambda x: x.cos() * 2, backend=backend)
    x = torch.ones(3)
    first(x), second(x)
    forget(second)  # and the records of both, which hold what was compiled
    regions_alive = alive()["CompiledRegion"]
    del first
    assert alive()["CompiledRegion"] == regions_alive - 1
    assert torch.equal(second(x), x.cos() * 2)
    assert backend.subgraph_infos == []


@pytest.mark.parametrize("cycle", [module_cycle, failing_transform_cycle])
def test_what_stays_of_a_dropped_callable_is_counted_and_empty(cycle):
    """A hook, which Dynamo keeps until a reset, and a cache entry without guards or code."""

    def hooks():
        gc.collect()
        return {id(o): o for o in gc.get_objects() if type(o) is Hook}

    def entries():
        return torch._dynamo.eval_frame._debug_get_cache_entry_list(Block.forward.__code__)

    torch._dynamo.reset()
    before = hooks()
    for _ in range(10):
        cycle()
    stay = [hook for key, hook in hooks().items() if key not in before]
    assert len(stay) <= 10
    assert all(hook.settings == Settings({}, {}) and not hook.codes() and not hook.compiled_graphs() for hook in stay)
    assert len(entries()) <= 10
    assert {type(entry.guard_manager).__name__ for entry in entries()} <= {"DeletedGuardManagerWrapper"}
    assert alive()["CompiledRegion"] == 0


@pytest.mark.skipif(TORCH >= (2, 13), reason="isolate_recompiles gives each callable a limit of its own")
def test_before_torch_2_13_eight_are_captured_and_the_rest_warn():
    """Dynamo's limit is for all that is compiled of a class, dropped or not."""
    torch._dynamo.reset()
    graphs, warned = 0, []
    with torch._dynamo.config.patch(recompile_limit=8):
        for _ in range(20):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                compiled = thunderfx(Block(4))
                compiled(torch.ones(2, 4))
                graphs += len(get_subgraph_info(compiled))
            warned.append(any(issubclass(each.category, ThunderFXWarning) for each in caught))
            del compiled
    assert graphs == 8
    assert all(warned[8:])


def test_what_stays_is_a_stub():
    """Of a dropped callable Dynamo keeps its hook, which holds no option of the user's any more."""
    from thunder.transforms import ConstantFolding

    transform = ConstantFolding()
    compiled = thunderfx(Block(4), transforms=[transform])
    compiled(torch.ones(2, 4))
    reference = weakref.ref(transform)
    del compiled, transform
    gc.collect()
    assert reference() is None
