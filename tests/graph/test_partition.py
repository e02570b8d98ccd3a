"""Splitting into regions."""

import torch

from tests.graph.test_structure import captured
from thunder_fx import CompilerType
from thunder_fx.graph import partition, rewrites, structure


def split(fn, unsupported, *inputs):
    """The split graph and its parts, with the named nodes not supported."""
    graph = captured(fn, *(inputs or (torch.randn(4, 4),)))
    nodes = {node for node in structure.calls(graph) if node.name in unsupported}
    assert len(nodes) == len(unsupported)
    return partition.split(graph, nodes)


def chain(x):
    a = x.sin()
    b = a.cos()
    c = b.tan()
    return c.exp()


def test_neighbours_of_one_kind_are_one_region():
    """Numbered in order of execution, named by compiler, with the captured graph's node names."""
    graph, parts = split(chain, ["b", "c"])
    assert [(p.name, p.compiler, p.nodes) for p in parts] == [
        ("thunder_0", CompilerType.THUNDER, ("a",)),
        ("inductor_1", CompilerType.TORCH_INDUCTOR, ("b", "c")),
        ("thunder_2", CompilerType.THUNDER, ("exp",)),
    ]
    x = torch.randn(4, 4)
    torch.testing.assert_close(graph(x), (chain(x),))


def test_all_of_one_kind_is_one_region():
    """Either way."""
    assert [p.name for p in split(chain, [])[1]] == ["thunder_0"]
    torch._dynamo.reset()
    assert [p.name for p in split(chain, ["a", "b", "c", "exp"])[1]] == ["inductor_0"]


def test_a_mode_alone_is_no_region():
    """Setting a grad mode computes nothing: it joins the region at hand, and is repeated where it reaches."""

    def fn(x):
        with torch.no_grad():
            c = x.sinc()
        return c + x

    graph, parts = split(fn, ["c"])
    assert [p.name for p in parts] == ["inductor_0", "thunder_1"]
    x = torch.randn(4, 4, requires_grad=True)
    (out,) = graph(x)
    assert out.requires_grad
    assert torch.is_grad_enabled()


def test_a_region_can_be_renamed():
    """As the submodule and as the node."""
    graph, _ = split(chain, ["b"])
    partition.rename_region(graph, "inductor_1", "eager_1")
    graph.recompile()
    assert [n.target for n in graph.graph.find_nodes(op="call_module")] == ["thunder_0", "eager_1", "thunder_2"]
    x = torch.randn(4, 4)
    torch.testing.assert_close(graph(x), (chain(x),))


def test_a_region_may_return_nothing():
    """Where it only writes into an input."""

    def fn(x, y):
        x.add_(1)
        return y.sin()

    graph, parts = split(fn, ["add_"], torch.zeros(2), torch.ones(2))
    assert len(parts) == 2
    x, y = torch.zeros(2), torch.ones(2)
    torch.testing.assert_close(graph(x, y), (y.sin(),))
    torch.testing.assert_close(x, torch.ones(2))


def test_rewrites_gather_elements_and_drop_empty_autocast():
    """Each element of a tuple stands right after the tuple, in order; empty contexts are gone; values are the same."""

    def fn(x):
        with torch.autocast("cpu", torch.bfloat16):
            pass
        parts = torch.split(x, 2)
        a = parts[0].sin()
        return parts[1] + a

    x = torch.randn(4, 4)
    graph = captured(fn, x)
    for node in graph.graph.find_nodes(op="call_method", target="sin"):
        last = graph.graph.find_nodes(op="output")[0].prev
        user = next(iter(n for n in graph.graph.nodes if n.name == "getitem_1"))
        node.append(user)  # as a graph of older torch may have it
        assert last is not user
    rewrites.rewrite(graph)
    names = [node.name for node in structure.calls(graph)]
    at = names.index("split") if "split" in names else 0
    assert sorted(names[at + 1 : at + 3]) == ["getitem", "getitem_1"]
    assert not any("autocast" in name for name in names)
    torch.testing.assert_close(graph(x), (fn(x),))
