"""What an input may be is read off the graph: an index is less than what it indexes."""

import pytest
import torch
import torch.nn.functional as F

from thunder_fx.graph import structure
from thunder_fx.portable.inputs import filled
from thunder_fx.repro import domains

FLOATS, TABLE, INTEGERS = torch.rand(5, 7), torch.rand(5, 7), torch.tensor([1, 0])


def captured(fn, *inputs):
    graphs = []

    def backend(graph_module, _):
        graphs.append(structure.copy_structure(graph_module))
        return graph_module

    torch.compile(fn, backend=backend)(*inputs)
    return graphs[0]


def domain_of_last(fn, *inputs):
    """The domain of the input that was given last."""
    found = domains.of_inputs(captured(fn, *inputs))
    shape = inputs[-1].shape
    (domain,) = (d for node, d in found.items() if structure.value_of(node).shape == shape)
    return domain


@pytest.mark.parametrize(
    ("fn", "below"),
    [
        (lambda x, i: x[i], 5),
        (lambda x, i: x[:, i], 7),
        (lambda x, i: x[..., i], 7),
        (lambda x, i: x[None, i], 5),
        (lambda x, i: x.index_select(1, i), 7),
        (lambda x, i: x.gather(1, i.view(1, 2)), 7),
        (lambda x, i: torch.take(x, i), 35),
        (lambda x, i: F.embedding(i, x), 5),
        (lambda x, i: torch.embedding(x, i), 5),
        (lambda x, i: F.embedding(i + 2, x), 3),
        (lambda x, i: F.embedding(i * 2, x), 3),
        (lambda x, i: F.embedding(torch.cat([i, i]).view(2, 2).unsqueeze(0), x), 5),
        (lambda x, i: F.cross_entropy(x[:2], i), 7),
        (lambda x, i: F.nll_loss(x[:2], i), 7),
        (lambda x, i: x.index_add(0, i, x[:2]), 5),
        (lambda x, i: x.scatter(1, i.view(1, 2), 0.0), 7),
        (lambda x, i: x.clone().index_put_((i,), x[:2]), 5),
        (lambda x, i: F.one_hot(i, 4) + x[0, 0], 4),
        (lambda x, i: x[i] + x.t()[i][:2, :5].sum(), 5),
        (lambda x, i: torch.utils.checkpoint.checkpoint(lambda y: x[y], i, use_reentrant=False), 5),
        (lambda x, i: torch.func.vmap(lambda row: x.index_select(0, row[None]))(i), 5),
        (lambda x, i: x[i // 4], 20),
        (lambda x, i: x * i.sum(), 2),
    ],
)
def test_an_index_is_less_than_what_it_indexes(fn, below):
    """Through views, joins and sums with numbers; the least of several; 2 where nothing is known, as in a mask."""
    assert domain_of_last(fn, FLOATS, INTEGERS) == domains.Domain("index", below)


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (lambda p: torch.bernoulli(p), "probability"),
        (lambda p: F.binary_cross_entropy(p, p), "probability"),
        (lambda p: p.view(-1).log(), "positive"),
        (lambda p: p.sin(), "normal"),
        (lambda p: p**0.5, "positive"),
        (lambda p: p**2.0, "normal"),
        (lambda p: 1 / p, "normal"),
        (lambda p: p.acosh(), "above one"),
        (lambda p: F.batch_norm(torch.ones(2, 35), torch.zeros(35), p.view(-1)), "positive"),
    ],
)
def test_floats_are_in_the_domain_of_what_reads_them(fn, kind):
    """A probability, or what has a logarithm; else anything."""
    assert domain_of_last(fn, TABLE).kind == kind


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (lambda x, p: x[(p * 4).long()], (5, 7)),
        (lambda x, p: x[(p * 2.5 + 1).floor().int()], (5, 7)),
        (lambda x, p: x[(p / 10).to(torch.int64)], (5, 7)),
        (lambda x, p: x[(4 - p).long()], (5, 7)),
        (lambda x, p: torch.linalg.cholesky(p.t()), (6, 6)),
        (lambda x, p: torch.linalg.cholesky(p.view(2, 3, 3)), (18,)),
    ],
)
def test_made_up_floats_do_not_fail(fn, shape):
    """What becomes an index is one; what has to be a definite matrix is one."""
    table, given = torch.rand(5, 1), torch.eye(6) if shape == (6, 6) else torch.eye(3).repeat(2, 1).reshape(18)
    given = torch.rand(shape) if shape == (5, 7) else given
    domain = domain_of_last(fn, table, given)
    assert domain.kind in ("index", "definite")
    values = filled(given.numel(), torch.float32, domain.kind, low=domain.low, below=domain.below)
    fn(table, values.reshape(shape))
    assert values.unique().numel() > 1


def test_bags_begin_where_they_may():
    """EmbeddingBag's offsets begin with 0 and do not decrease."""
    table, items, offsets = torch.rand(9, 2), torch.tensor([8, 1, 4, 4]), torch.tensor([0, 3])
    assert domain_of_last(lambda x, i, o: F.embedding_bag(i, x, o), table, items, offsets) == domains.Domain("zero")
    assert domain_of_last(lambda x, o, i: F.embedding_bag(i, x, o), table, offsets, items) == domains.Domain("index", 9)


def test_what_divides_is_not_zero():
    """An integer division by zero raises."""
    assert domain_of_last(lambda x, y: x // y, torch.tensor([[4, 3]]), torch.tensor([2, 1])) == domains.Domain(
        "index", 3, 1
    )


@pytest.mark.parametrize(
    ("fn", "low", "below"),
    [
        (lambda x, i: F.embedding(i - 1, x), 1, 6),
        (lambda x, i: F.embedding(i + 2, x), 0, 3),
        (lambda x, i: F.embedding(3 - i, x), 0, 4),
        (lambda x, i: F.embedding(7 - i, x), 3, 8),
        (lambda x, i: F.embedding((i - 2) * 2, x), 2, 5),
    ],
)
def test_arithmetic_moves_both_bounds(fn, low, below):
    """What is read at the end is from 0 to 4, whichever number is drawn."""
    domain = domain_of_last(fn, FLOATS, torch.tensor([low, low]))
    assert (domain.low, domain.below) == (low, below)
    for value in range(low, below):
        fn(FLOATS, torch.tensor([value, value]))


def test_a_matrix_of_weights_is_small():
    """Products of many numbers of deviation 1 would overflow in a deep model."""
    weight = torch.rand(3, 5, requires_grad=True)
    assert domain_of_last(F.linear, FLOATS[:, :5], weight) == domains.Domain("weight")
