"""What stands in for functions of thunder's while it compiles changes nothing but seconds."""

import concurrent.futures
import contextlib
import dataclasses
import gc
import inspect
import multiprocessing
import os
import re
import sys

import pytest
import thunder
import torch
from thunder.core.proxies import variableify
from torch.utils.checkpoint import checkpoint

import thunder_fx
from tests.helpers import Block
from thunder_fx import _quick, compiler, get_subgraph_info, thunderfx


def traces(compiled):
    """Of all regions and stages, without what differs from run to run, and with names in the order of their numbers."""
    regions = [region for info in get_subgraph_info(compiled) for region in info.regions]
    stages = [trace for r in regions for trace in (*r.traces, *r.backward_traces, *r.prologue_traces)]
    return [renamed(re.sub(r"took \d+ milliseconds|0x[0-9a-f]+", "", str(trace))) for trace in stages]


def renamed(text):
    """A pass that is left out uses up no numbers: t17 is then t12. Types and operators, f32[2] and log2, stay."""
    names = {}
    numbered = r"\b((?:[a-z]|bw_\w*?|[A-Za-z]+_|TorchCompile\w*?|TorchAutograd\w*?))(\d+)\b(?!\[)"
    return re.sub(numbered, lambda found: names.setdefault(found[0], f"{found[1]}{len(names)}"), text)


def test_only_names_are_renamed():
    """So that the comparison below sees another operator, dtype or shape."""
    assert renamed("t17 = torch.log2(t9)  # t17: f32[4, 3]") == "t0 = torch.log2(t1)  # t0: f32[4, 3]"
    assert renamed("torch.log2 float32") != renamed("torch.log10 float32") != renamed("torch.log10 float64")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(8), torch.nn.LayerNorm(8), Block(8), torch.nn.Dropout(0.1))

    def forward(self, x):
        scores = torch.softmax(self.blocks(x) @ x.transpose(-1, -2), -1)
        return scores.masked_fill(scores < 0.01, 0.0).sum(dim=(0, -1)), torch.cat([x, x * 2], dim=-1)[..., ::2]


def in_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ x.transpose(-1, -2)).float(), x.sin()


def checkpointed(x):
    return checkpoint(lambda y: (y.sin() * y).exp(), x, use_reentrant=False), x.cos()


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Model, {}),
        (Model, {"dynamic": True}),
        (Model, {"executors": ["torch"]}),
        (lambda: in_autocast, {}),
        (lambda: checkpointed, {}),
    ],
    ids=["model", "dynamic", "executors", "autocast", "checkpoint"],
)
def test_compiling_sooner_changes_no_trace(make, options, monkeypatch):
    """Each trace of each stage, with and without, and each number."""
    found = []
    for quick in (True, False):
        torch._dynamo.reset()
        torch.manual_seed(0)
        if not quick:
            monkeypatch.setattr(_quick, "quickened", contextlib.nullcontext)
            monkeypatch.setattr(compiler, "_split", compiler._split.__wrapped__)
        compiled = thunderfx(make(), **options)
        x = torch.rand(2, 5, 8, requires_grad=True)
        results = compiled(x)
        sum(result.sum() for result in results).backward()
        found.append((traces(compiled), results, x.grad))
    assert len(found[0][0]) > 10
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1:], found[1][1:], rtol=0, atol=0)


def functions_that_stand_in():
    """Where, in all of thunder's modules."""
    own = {value for _, _, _, value in _quick._quick_names()}
    modules = [(name, module) for name, module in list(sys.modules.items()) if name.partition(".")[0] == "thunder"]
    found = [(name, key) for name, module in modules for key, value in list(vars(module).items()) if is_in(value, own)]
    return sorted(found)


def is_in(value, those):
    return any(value is each for each in those)


def test_thunder_is_as_it_was_afterwards():
    """Each of its modules has the quick functions inside, and its own outside, after an error, too."""
    with contextlib.suppress(RuntimeError), _quick.quickened(), _quick.quickened():
        assert ("thunder.core.symbol", "tree_flatten_with_dataclass") in functions_that_stand_in()
        raise RuntimeError
    assert functions_that_stand_in() == []
    compiled = thunderfx(Block(4))
    compiled(torch.ones(2, 4)).sum().backward()
    assert functions_that_stand_in() == []
    assert _quick._signatures == {}


def test_a_module_that_is_imported_meanwhile_gets_its_own_functions_back(monkeypatch):
    """It took what stood there, by `from thunder.core.pytree import tree_flatten`."""
    usual = thunder.core.pytree.tree_flatten
    new = type(sys)("thunder.imported_meanwhile")
    with _quick.quickened():
        new.tree_flatten = thunder.core.pytree.tree_flatten
        monkeypatch.setitem(sys.modules, "thunder.imported_meanwhile", new)
    assert new.tree_flatten is usual


def test_what_another_thread_finds_meanwhile_is_what_there_usually_is():
    """Two of them may look for thunder's functions for the first time, one while the other has put its own there."""
    _quick._quick_names.cache_clear()
    names, usual = _quick._quick_names(), thunder.core.pytree.tree_flatten
    with _quick.quickened():
        _quick._quick_names.cache_clear()
        assert _quick._quick_names() == names
    assert thunder.core.pytree.tree_flatten is usual
    assert functions_that_stand_in() == []


def test_thunder_cleans_again_what_was_cleaned_but_for_some_of_it():
    """dce() of thunder's keeps what it is asked to keep, and takes it off the next time."""

    def fn(x):
        x.cos()  # of which nobody takes the result
        return x.sin()

    compiled = thunder.jit(fn)
    compiled(torch.ones(3))
    trace = thunder.last_traces(compiled)[0]
    (unused,) = (bound.output for bound in trace.bound_symbols if bound.sym.name == "cos")
    kept = _quick._dce(trace, needed_proxies={variableify(unused)})
    assert "cos" in [bound.sym.name for bound in kept.bound_symbols]
    assert "cos" not in [bound.sym.name for bound in _quick._dce(kept).bound_symbols]


def test_thunder_has_all_of_inspect_inside():
    """Another release of it may ask for more than this one does."""
    with _quick.quickened():
        assert thunder.core.symbol.inspect.isfunction is inspect.isfunction
        assert thunder.core.symbol.inspect.signature is not inspect.signature
    assert thunder.core.symbol.inspect is inspect


def full_collections():
    """How many there are while much is made that stays."""
    before = gc.get_stats()[2]["collections"]
    kept = [[] for _ in range(200_000)]
    assert kept
    return gc.get_stats()[2]["collections"] - before


def test_what_somebody_else_has_put_into_thunder_stays(monkeypatch):
    """A tracer's, or a test's: it is called, and is there afterwards."""
    import thunder.executors.passes as passes

    calls, usual = [], passes.dce

    def counting(*args, **kwargs):
        calls.append(args)
        return usual(*args, **kwargs)

    monkeypatch.setattr(passes, "dce", counting)
    thunderfx(lambda x: x.sin() + 1)(torch.ones(3))
    assert calls
    assert passes.dce is counting


@pytest.fixture
def young():
    """Python puts a full collection off, too, where most of what there is is old."""
    before = gc.get_threshold()
    gc.freeze()
    gc.collect()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_full_collections_wait_while_thunder_compiles(young):
    """The smaller ones go on. What the program has set is there again after it, and what it sets meanwhile stays."""
    gc.set_threshold(701, 11, 12)
    assert full_collections() > 0
    with _quick.quickened():
        with _quick.quickened():
            assert full_collections() == 0
        assert gc.get_threshold()[:2] == (701, 11)
    assert gc.get_threshold() == (701, 11, 12)
    with _quick.quickened():
        gc.set_threshold(702, 13, 14)
    assert gc.get_threshold() == (702, 13, 14)
    gc.set_threshold(700, 10, 10_000)
    with _quick.quickened():
        assert gc.get_threshold()[2] != 10_000
    assert gc.get_threshold() == (700, 10, 10_000)


def test_a_threshold_that_was_saved_meanwhile_and_restored_later_does_not_stay(young):
    """Another thread may do so: the next compilation ends with what there was before."""
    gc.set_threshold(701, 11, 12)
    with _quick.quickened():
        saved = gc.get_threshold()
    gc.set_threshold(*saved)
    with _quick.quickened():
        pass
    assert gc.get_threshold() == (701, 11, 12)


def _interrupted(function, line):
    """A trace function that raises KeyboardInterrupt when a function of _quick.py first comes to a line."""
    happened = []

    def at_line(frame, event, arg):
        if event == "line" and frame.f_lineno == line and not happened:
            happened.append(True)
            raise KeyboardInterrupt
        return at_line

    return lambda frame, event, arg: at_line if frame.f_code is function.__code__ else None


@pytest.mark.parametrize("function", [_quick._begin, _quick._leave, _quick._end], ids=lambda f: f.__name__)
def test_an_interrupt_on_the_way_in_or_out_leaves_nothing_behind(young, function):
    """Ctrl-C at each line of what puts the names there and takes them away."""
    gc.set_threshold(701, 11, 12)
    lines = {line for _, _, line in function.__code__.co_lines() if line} - {function.__code__.co_firstlineno}
    interrupts = 0
    for line in lines:
        usual = sys.gettrace()
        sys.settrace(_interrupted(function, line))
        try:
            with _quick.quickened():
                pass
        except KeyboardInterrupt:
            interrupts += 1
        finally:
            sys.settrace(usual)
        assert (gc.get_threshold(), functions_that_stand_in(), len(_quick._state.inside)) == ((701, 11, 12), [], 0), (
            line
        )
    assert interrupts >= 3


def _state_in_child(queue):
    queue.put((len(_quick._state.inside), gc.get_threshold()[2], functions_that_stand_in()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_process_that_is_forked_meanwhile_is_as_it_was():
    """As a DataLoader's is."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    with _quick.quickened():
        child = context.Process(target=_state_in_child, args=(queue,))
        child.start()
        child.join()
    assert queue.get() == (0, gc.get_threshold()[2], [])


def test_what_is_flattened_is_the_same():
    """Trees, proxies, dataclasses that nobody has registered, and what thunder refuses."""

    @dataclasses.dataclass
    class Pair:
        a: int
        b: list

    pytree = thunder.core.pytree
    # A spec is there to build the tree again: of a size, both build a tuple.
    for tree in (1, None, (1, [2, {"a": None}]), {"x": slice(1, None)}, torch.Size([2, 3]), [torch.float32, "s", 1.5]):
        assert _quick._flatten(tree) == pytree.tree_flatten(tree)
        ours, theirs = _quick._flatten_with_dataclass(tree), pytree.tree_flatten_with_dataclass(tree)
        assert ours[0] == theirs[0]
        assert pytree.tree_unflatten(*ours) == pytree.tree_unflatten(*theirs)
    pair = (Pair(1, [2, 3]), 4)
    assert _quick._flatten_with_dataclass(pair)[0] == pytree.tree_flatten_with_dataclass(pair)[0] == [1, 2, 3, 4]
    with pytest.raises(TypeError, match="is not supported"):
        _quick._flatten(object())


def test_two_threads_compile_at_once():
    """The last to leave puts thunder's own functions back."""
    functions = [lambda x: x.sin() + 1, lambda x: x.cos() * 2, lambda x: x.exp() - 1]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda fn: thunder_fx.thunderfx(fn)(torch.zeros(2)).tolist(), functions))
    assert results == [[1, 1], [2, 2], [0, 0]]
    assert not _quick._state.inside
    assert functions_that_stand_in() == []
