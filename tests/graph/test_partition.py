"""Splitting into regions."""

import torch

from tests.graph.test_structure import captured
from tests.helpers import needs_cxx
from thunder_fx import CompilerType, get_subgraph_info, thunderfx
from thunder_fx.graph import dependencies, modes, partition, rewrites, structure


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
    rewrites.rewrite(graph, {}, modes.ambient())
    names = [node.name for node in structure.calls(graph)]
    at = names.index("split") if "split" in names else 0
    assert sorted(names[at + 1 : at + 3]) == ["getitem", "getitem_1"]
    assert not any("autocast" in name for name in names)
    torch.testing.assert_close(graph(x), (fn(x),))


# Gathering


def names(parts):
    return [(part.name, part.nodes) for part in parts]


def test_what_depends_on_nothing_of_thunders_is_gathered():
    """Two helpers far apart in the program share one region, which runs first."""

    def fn(x, pos):
        a = x.sin()
        d = pos.floor()
        b = a.cos()
        n = pos.ceil()
        return b + d + n

    x, pos = torch.randn(4), torch.randn(4)
    graph, parts = split(fn, ["d", "n"], x, pos)
    assert names(parts) == [("inductor_0", ("d", "n")), ("thunder_1", ("a", "b", "add", "add_1"))]
    torch.testing.assert_close(graph(x, pos), (fn(x, pos),))


@needs_cxx
def test_helpers_that_thunder_lacks_share_one_region():
    """A function whose helpers depend on nothing else: two regions, whatever the program's order; and the right sum."""

    def fn(x, pos):
        a = x.sin()
        d = torch.special.i1(pos)
        b = a.cos() * 2
        n = torch.sinc(pos)
        return b.exp() + d.sum() + n.sum()

    compiled = thunderfx(fn)
    x, pos = torch.randn(4, requires_grad=True), torch.arange(5.0)
    torch.testing.assert_close(compiled(x, pos), fn(x, pos))
    (info,) = get_subgraph_info(compiled)
    assert [region.compiler.name for region in info.regions] == ["TORCH_INDUCTOR", "THUNDER"]


def test_what_nothing_of_thunders_depends_on_is_gathered_too():
    """And runs last."""

    def fn(x):
        a = x.sin()
        b = a.floor()
        c = a.cos()
        d = c.ceil()
        return b, c, d

    x = torch.randn(4)
    graph, parts = split(fn, ["b", "d"], x)
    assert names(parts) == [("thunder_0", ("a", "c")), ("inductor_1", ("b", "d"))]
    torch.testing.assert_close(graph(x), fn(x))


def test_arithmetic_on_indices_goes_along():
    """What only feeds unsupported nodes, and holds no floating point number, makes no region of its own."""

    def fn(x, i):
        a = x.sin()
        j = i + 1
        k = torch.sinc(j)
        return a + k

    x, i = torch.randn(4), torch.arange(4)
    graph, parts = split(fn, ["k"], x, i)
    assert names(parts) == [("inductor_0", ("j", "k")), ("thunder_1", ("a", "add_1"))]
    torch.testing.assert_close(graph(x, i), (fn(x, i),))
    torch._dynamo.reset()
    # A model's own work does not: it stays with thunder.
    _, parts = split(lambda x: torch.sinc(x.sin()) + x, ["sinc"])
    assert [part.name for part in parts] == ["thunder_0", "inductor_1", "thunder_2"]


def test_random_operators_keep_their_order():
    """Two draws do not change places, though nothing else holds them apart."""

    def fn(x):
        a = torch.rand(4)
        b = torch.randn(4)
        c = torch.rand(4)
        return x + a + b + c

    x = torch.ones(4)
    graph, parts = split(fn, ["b"], x)
    assert [part.name for part in parts] == ["thunder_0", "inductor_1", "thunder_2"]
    torch.manual_seed(1)
    got = graph(x)
    torch.manual_seed(1)
    torch.testing.assert_close(got, (fn(x),))


def test_nothing_moves_across_a_mode():
    """A helper under no_grad stays there."""

    def fn(x, y):
        a = x.sin()
        with torch.no_grad():
            b = y.floor()
        c = a.cos()
        d = y.ceil()
        return b + c + d

    x, y = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    graph, _ = split(fn, ["b", "d"], x, y)
    (got,) = graph(x, y)
    torch.testing.assert_close(got, fn(x, y))
    assert torch.autograd.grad(got.sum(), y, retain_graph=True)[0].eq(0).all()


def test_a_reader_keeps_its_place_among_writes():
    """A read of an input before a write into it is not moved behind the write, under whatever name."""

    def fn(x, y):
        a = x[0].sinc()
        b = y.sin()
        x.mul_(2)
        c = b.cos()
        d = x[0].sinc()
        return a, c, d

    x, y = torch.rand(3, 3), torch.rand(3)
    graph = captured(fn, x.clone(), y)
    nodes = {node for node in structure.calls(graph) if node.name in ("a", "d", "mul_", "getitem")}
    split_graph, _ = partition.split(graph, nodes)
    torch.testing.assert_close(split_graph(x.clone(), y), fn(x.clone(), y))


def test_a_group_stays_in_one_region():
    """With all that lies between its members."""
    graph = captured(chain, torch.randn(4, 4))
    nodes = {node.name: node for node in structure.calls(graph)}
    order = dependencies.order(graph)
    assert {n.name for n in dependencies.closed(order, [nodes["a"], nodes["c"]])} == {"a", "b", "c"}


def test_a_single_region_needs_no_stitching():
    """The region's own callable is what Dynamo calls; its results come in a tuple."""
    graph, _ = split(lambda x: x.sin() + 1, [])
    x = torch.randn(4, 4)
    run = partition.without_stitching(graph)
    torch.testing.assert_close(run(x), (x.sin() + 1,))
    torch._dynamo.reset()
    graph, _ = split(lambda x: (x.sin(), x.cos()), [])
    torch.testing.assert_close(partition.without_stitching(graph)(x), (x.sin(), x.cos()))
    torch._dynamo.reset()
    assert partition.without_stitching(split(chain, ["b"])[0]) is None


# Dead code


def calls_after_rewriting(fn, *inputs):
    graph = captured(fn, *inputs)
    rewrites.rewrite(graph, {}, modes.ambient())
    return [node.name for node in structure.calls(graph)]


def test_what_nothing_reads_is_removed():
    """A write into a value that nobody reads is; a draw, and a write into an input, are not."""

    def fn(x, y):
        dead = x.sin()
        dead[0] += 1
        view = dead.view(-1)
        view.mul_(2)
        drawn = torch.rand(2)  # noqa: F841
        y.add_(1)
        return x.cos()

    assert calls_after_rewriting(fn, torch.ones(2, 2), torch.ones(2)) == ["drawn", "add_", "cos"]


def test_a_write_that_a_result_shows_is_kept():
    """Under another name, after the last read of the written one."""

    def fn(x):
        y = x.sin()
        v = y[0]
        v.mul_(2)
        return y

    assert "mul_" in calls_after_rewriting(fn, torch.ones(2, 2))


def test_whoever_takes_a_tuple_gets_its_elements():
    """So that no region hands a tuple to the next."""

    def fn(x):
        parts = torch.split(x, 2)
        return torch.cat(parts) + parts[0].sum()

    x = torch.randn(4, 4)
    graph = captured(fn, x)
    rewrites.rewrite(graph, {}, modes.ambient())
    (cat,) = graph.graph.find_nodes(op="call_function", target=torch.cat)
    assert [node.target.__name__ for node in cat.all_input_nodes] == ["getitem", "getitem"]
    torch.testing.assert_close(graph(x), (fn(x),))
