"""What the adapter to thunder does for speed, and that it changes nothing."""

import inspect
import re

import torch

import thunder_fx
from tests.helpers import Block
from thunder_fx import _thunder, get_subgraph_info, thunderfx


def traces(compiled):
    """Of all regions and stages, without what differs from run to run, and with names in the order of their numbers."""
    regions = [region for info in get_subgraph_info(compiled) for region in info.regions]
    stages = [trace for r in regions for trace in (*r.traces, *r.backward_traces, *r.prologue_traces)]
    return [renamed(re.sub(r"took \d+ milliseconds|0x[0-9a-f]+", "", str(trace))) for trace in stages]


def renamed(text):
    """A pass that is left out uses up no numbers: t17 is then t12."""
    names = {}
    return re.sub(r"\b([A-Za-z_]+?)(\d+)\b", lambda found: names.setdefault(found[0], f"{found[1]}{len(names)}"), text)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(8), torch.nn.LayerNorm(8), Block(8), torch.nn.Dropout(0.1))

    def forward(self, x, mask=None):
        scores = torch.softmax(self.blocks(x) @ x.transpose(-1, -2), -1)
        return scores.masked_fill(scores < 0.01, 0.0).sum(dim=(0, -1)), torch.cat([x, x * 2], dim=-1)[..., ::2]


def test_compiling_sooner_changes_no_trace(monkeypatch):
    """Each trace of each stage, with and without."""
    found = []
    for quick in (True, False):
        torch._dynamo.reset()
        torch.manual_seed(0)
        if not quick:
            monkeypatch.setattr(_thunder, "quickened", __import__("contextlib").nullcontext)
        compiled = thunderfx(Model())
        results = compiled(torch.rand(2, 5, 8, requires_grad=True))
        sum(result.sum() for result in results).backward()
        found.append(traces(compiled))
    assert len(found[0]) > 10
    assert found[0] == found[1]


def test_thunder_is_as_it_was_afterwards():
    """Inside, each of its modules has the quick functions, and outside its own; after an error, too."""
    import thunder

    own = thunder.core.pytree.tree_flatten
    try:
        with _thunder.quickened(), _thunder.quickened():
            assert thunder.core.symbol.tree_flatten_with_dataclass is _thunder._flatten_with_dataclass
            assert thunder.core.pytree.tree_flatten is not own
            raise RuntimeError
    except RuntimeError:
        pass
    assert thunder.core.pytree.tree_flatten is own
    assert thunder.core.symbol.inspect is inspect
    assert _thunder._signatures == {}


def test_full_collections_wait_while_thunder_compiles():
    """The smaller ones go on. What the program has set is there again after it, and what it sets meanwhile stays."""
    import gc

    def full_collections():
        before = gc.get_stats()[2]["collections"]
        kept = [[] for _ in range(200_000)]
        assert kept
        return gc.get_stats()[2]["collections"] - before

    before = gc.get_threshold()
    gc.freeze()  # Python puts a full collection off, too, where most of what there is is old
    try:
        gc.collect()
        gc.set_threshold(701, 11, 12)
        assert full_collections() > 0
        with _thunder.quickened():
            with _thunder.quickened():
                assert full_collections() == 0
            assert gc.get_threshold()[:2] == (701, 11)
        assert gc.get_threshold() == (701, 11, 12)
        with _thunder.quickened():
            gc.set_threshold(702, 13, 14)
        assert gc.get_threshold() == (702, 13, 14)
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_what_is_flattened_is_the_same():
    """Trees, proxies, dataclasses that nobody has registered, and what thunder refuses."""
    import dataclasses

    import pytest
    import thunder

    @dataclasses.dataclass
    class Pair:
        a: int
        b: list

    pytree = thunder.core.pytree
    # A spec is there to build the tree again: of a size, both build a tuple.
    for tree in (1, None, (1, [2, {"a": None}]), {"x": slice(1, None)}, torch.Size([2, 3]), [torch.float32, "s", 1.5]):
        assert _thunder._flatten(tree) == pytree.tree_flatten(tree)
        ours, theirs = _thunder._flatten_with_dataclass(tree), pytree.tree_flatten_with_dataclass(tree)
        assert ours[0] == theirs[0]
        assert pytree.tree_unflatten(*ours) == pytree.tree_unflatten(*theirs)
    pair = (Pair(1, [2, 3]), 4)
    assert _thunder._flatten_with_dataclass(pair)[0] == pytree.tree_flatten_with_dataclass(pair)[0] == [1, 2, 3, 4]
    with pytest.raises(TypeError, match="is not supported"):
        _thunder._flatten(object())


def test_two_threads_compile_at_once():
    """The last to leave puts thunder's own functions back."""
    import concurrent.futures

    functions = [lambda x: x.sin() + 1, lambda x: x.cos() * 2, lambda x: x.exp() - 1]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda fn: thunder_fx.thunderfx(fn)(torch.zeros(2)).tolist(), functions))
    assert results == [[1, 1], [2, 2], [0, 0]]
    assert _thunder._quickening == 0
