"""What thunder 0.2.6 computes wrong, silently or not, equals eager here: outputs, gradients, dtypes, random stream."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.differential.compare import assert_same
from tests.helpers import Block, assert_same_as_eager, needs_cxx
from thunder_fx import CompilerType, get_subgraph_info, thunderfx
from thunder_fx.graph import partition, structure, writes

pytestmark = needs_cxx


def matrix():
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def check(fn, *inputs, thunder=None, **tolerance):
    """`fn` equals eager; with `thunder`, whether any region is thunder's."""
    compiled = thunderfx(fn)
    assert_same_as_eager(compiled, fn, *(inputs or (matrix(),)), **tolerance)
    (info, *_) = get_subgraph_info(compiled)
    if thunder is not None:
        assert thunder == any(r.compiler is CompilerType.THUNDER for r in info.regions)
    return info


# In-place writes


def scale(x):
    y = x * 2
    y /= y.sum(-1, keepdim=True)
    return y


def row(x):
    y = x * 1
    v = y[0]
    v *= 2
    return y


def flat_view(x):
    y = x * 1
    v = y.view(-1)
    v *= 2
    return y.sin()


def route(x):
    v, i = torch.topk(torch.softmax(x, -1), 2, dim=-1)
    v /= v.sum(-1, keepdim=True)
    return v * (i + 1)


def fill(x):
    z = torch.zeros(6, 4)
    z[1:3] = x[:2]
    z[0].add_(x[0])
    return z.exp() * x.sin()


def relu_in_place(x):
    return F.relu(x * 2, inplace=True) + F.relu_(x * 3)


def inverse_permutation(x):
    perm = torch.argsort(x[:, 0].detach())
    inverse = torch.empty_like(perm)
    inverse[perm] = torch.arange(perm.size(0))
    return x[inverse] * 2


def out_argument(x):
    y = torch.empty(6, 4)
    torch.sin(x.detach(), out=y)
    return y * x


def write_then_read_alias(x):
    y = x * 2
    v = y[:, :2]
    y.mul_(3)
    return v + y[:, 2:]


def twice(x):
    y = x.cos()
    y.add_(1)
    z = y.sin()
    z.mul_(y)
    return z


@pytest.mark.parametrize(
    "fn",
    [
        scale,
        row,
        flat_view,
        route,
        fill,
        relu_in_place,
        inverse_permutation,
        out_argument,
        write_then_read_alias,
        twice,
    ],
)
def test_in_place_writes_have_eagers_gradients(fn):
    """thunder returns right values and wrong gradients for the first four; it sees no write any more."""
    info = check(fn)
    of_thunder = [
        node
        for region in info.regions
        if region.compiler is CompilerType.THUNDER
        for node in structure.calls(partition.region_graph(info.original_split_graph_module, region.name))
    ]
    assert not any(list(writes.written(node)) for node in of_thunder)


def test_what_stands_around_a_write_stays_with_thunder():
    """Only what uses the storage, up to the last write into it, goes elsewhere."""

    def fn(x):
        a = x.sin()
        y = a * 2
        y[0] += 1
        return y.cos() * a

    info = check(fn)
    assert [(r.compiler.name, len(r.nodes)) for r in info.regions] == [
        ("THUNDER", 1),
        ("TORCH_INDUCTOR", 3),
        ("THUNDER", 3),
    ]


def test_a_write_to_an_input_is_seen_by_the_caller():
    """The caller's tensor is changed as by eager; a buffer's counter too, with thunder around it."""

    def fn(counter, x):
        y = x.sin()
        counter.add_(1)
        return y * counter

    def run(f):
        counter, x = torch.zeros(4), matrix().requires_grad_()
        f(counter, x).sum().backward()
        return counter, x.grad, f(counter, x).detach(), counter

    compiled = thunderfx(fn)
    torch.testing.assert_close(run(compiled), run(fn))


@pytest.mark.parametrize("compiled_first", [True, False])
def test_views_of_one_input_that_are_written(compiled_first):
    """Two inputs of one storage, from the first call on."""

    def fn(a, b):
        return a.exp_() * b.tanh_()

    def run(f):
        y = torch.arange(6.0).reshape(2, 3) / 10
        return f(y, y[0, 0]), y

    torch.testing.assert_close(run(thunderfx(fn)), run(fn))


# A 0-dimensional CPU tensor that is broadcast


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sin() + x.sum(),
        lambda x: x - x.mean(),
        lambda x: x / x.norm(),
        lambda x: torch.where(x > 0, x.sum(), x),
        lambda x: torch.maximum(x, x.mean()),
        lambda x: x[0, 0] * x[1],
        lambda x: (x.abs() + 1) ** x.mean(),
        lambda x: torch.addcmul(x, x, x.mean()),
        lambda x: (x.sum() + 1) * torch.ones(3),
    ],
)
def test_a_broadcast_scalar_keeps_its_gradient(fn):
    """thunder gives the 0-dimensional tensor the gradient of the whole result, without summing, or fails.

    Where it is expanded first (equivalents.py) all of it stays with thunder; else it goes to Inductor.
    """
    info = check(fn, rtol=1e-4, atol=1e-4)
    refused = any("0-dimensional" in r.info for r in info.split_reasons)
    expanded = any("expand" in node for region in info.regions for node in region.nodes)
    assert refused != expanded


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * x.sum(0),
        lambda x: x * x.sum((0, 1), keepdim=True),
        lambda x: x * x.sum().expand(6, 4),
        lambda x: x * x.sum().unsqueeze(0),
        lambda x: torch.stack([x.sum(), x.mean()]) * 2,
        lambda x: (x.sum() + 1) * x.mean(),
    ],
)
def test_other_broadcasts_stay_with_thunder(fn):
    """The reason above is no broader than the fault."""
    info = check(fn, rtol=1e-4, atol=1e-4)
    assert info.split_reasons == []


def test_a_scalar_without_gradient_stays_with_thunder():
    """A constant loses nothing."""
    assert check(lambda x: x * torch.tensor(3.0)).split_reasons == []


# Random numbers


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.dropout(x, 0.5) + x,
        lambda x: F.dropout(x, 0.5, training=False) + x,
        lambda x: F.rrelu(x, training=True),
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
        lambda x: torch.rand_like(x) * x,
        lambda x: torch.randn(6, 4) + x.sin(),
        lambda x: torch.bernoulli(torch.sigmoid(x).detach()) * x,
        lambda x: torch.multinomial(torch.sigmoid(x).detach(), 2) + x.sin()[:, :2],
        lambda x: torch.randint(0, 9, (6, 4)) * x,
        lambda x: F.dropout(torch.sinc(x), 0.5) + torch.sinc(torch.rand_like(x)),
        lambda x: torch.empty_like(x).uniform_() * x,
        lambda x: torch.utils.checkpoint.checkpoint(lambda y: F.dropout(y, 0.5).sin(), x, use_reentrant=False) * 2,
    ],
)
def test_random_operators_draw_eagers_numbers(fn):
    """Under a seed: the same outputs, the same gradients, and the generator in the same state afterwards."""
    check(fn)


def test_random_operators_stay_with_thunder_where_they_are_exact():
    """Dropout without gradients, and rand with them."""
    compiled = thunderfx(lambda x: F.dropout(x, 0.5) + 1)
    compiled(torch.ones(3))
    assert get_subgraph_info(compiled)[0].split_reasons == []
    assert check(lambda x: torch.rand_like(x) * x).split_reasons == []


# Operators and contexts


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x @ torch.eye(4) + torch.linspace(0, 1, 4),
        lambda x: x + torch.logspace(0, 1, 4),
        lambda x: x * torch.hann_window(4),
        lambda x: x + torch.tril_indices(4, 4)[0, :4],
        lambda x: x + torch.triu_indices(4, 4).sum() + torch.empty(4).fill_(2),
    ],
)
def test_factories_that_thunder_lacks(fn):
    """Found before the run; without that the first call fails."""
    check(fn)


def no_grad_split(x):
    with torch.no_grad():
        c = x.sinc()
    return c + x


def nested_modes(x):
    a = x.sin()
    with torch.no_grad():
        b = torch.sinc(a) * 2
        with torch.enable_grad():
            c = torch.sinc(x) + 1
    return a * b * c


def vmapped(x):
    return torch.vmap(torch.sin)(x) + x.cos()


def nested_vmap(x):
    return torch.vmap(torch.vmap(lambda v: v * 2))(x).sin() + torch.vmap(lambda v: v.sum())(x)[:, None]


def splits_a_tuple(x):
    a, b, c = torch.split(x, [1, 2, 3])
    return torch.sinc(c) + a + b[:1].cos()


def kthvalue(x):
    v, i = torch.kthvalue(x, 2)
    return v.sin() + i


@pytest.mark.parametrize("fn", [no_grad_split, nested_modes, vmapped, nested_vmap, splits_a_tuple, kthvalue])
def test_contexts_and_tuples(fn):
    """Splits inside a grad mode, functorch levels, and values that are tuples."""
    check(fn, thunder=True)


def test_autocast_that_a_split_reaches_into():
    """Each region computes under the autocast that holds there; the dtype tells."""

    def fn(x):
        with torch.autocast("cpu", torch.bfloat16):
            a = x @ x.T
            b = torch.sinc(a)
            return b @ x

    compiled, x = thunderfx(fn), matrix()
    out, want = compiled(x), fn(x)
    assert out.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(out, want)
    reasons = [r.node for r in get_subgraph_info(compiled)[0].split_reasons]
    assert "b" in reasons
    assert reasons[-1] == "_enter_autocast"


# Higher-order operators


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        ctx.k = 3
        return a * b, a + b

    @staticmethod
    def backward(ctx, g, h):
        a, b = ctx.saved_tensors
        return g * b * ctx.k + h, g * a * 2 + h


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, k):
        ctx.k = k
        return a * k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k * 5, None


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        s, i = x.sort()
        ctx.mark_non_differentiable(i)
        ctx.save_for_backward(i)
        return s, i

    @staticmethod
    def backward(ctx, g, _):
        (i,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, i, g) * 2


class WithSinc(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sinc(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.sinc(x) * 7


@pytest.mark.parametrize(
    ("fn", "by_thunder"),
    [
        (lambda x: Double.apply(x).sin() + 1, True),
        (lambda x: sum(Pair.apply(x.sin(), x.cos())), True),
        (lambda x: Scaled.apply(x, 2.0).sin(), True),
        (lambda x: Marked.apply(x)[0].sin(), False),
        (lambda x: WithSinc.apply(x) * 2, False),
    ],
    ids=["one", "two", "number", "non-differentiable", "operator that thunder lacks"],
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_autograd_functions_use_their_own_backward(fn, by_thunder, dynamic):
    """In thunder where it can take them, on every torch, else in Inductor; their gradients are made up to tell."""
    compiled = thunderfx(fn, dynamic=dynamic)
    assert_same_as_eager(compiled, fn, matrix())
    (info, *_) = get_subgraph_info(compiled)
    assert (info.split_reasons == []) == by_thunder


def test_checkpoint():
    """In thunder where all of its body can be, and in Inductor where not."""
    block = Block(4)
    inside = check(lambda x: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sin())
    assert inside.split_reasons == []
    outside = check(
        lambda x: torch.utils.checkpoint.checkpoint(lambda y: torch.sinc(y).sin(), x, use_reentrant=False) * 2
    )
    assert "contains: node with name: sinc" in outside.split_reasons[0].info


def test_a_checkpoint_that_runs_eager_drops_the_same_in_backward():
    """Where a write keeps Inductor away, and where overlapping inputs do: the operator in the graph would draw anew."""

    def dropping(x, y):
        x.add_(1)
        return checkpoint(lambda z: F.dropout(z.sin(), 0.5).sin(), y, use_reentrant=False) + x.sum()

    compiled = thunderfx(dropping)
    apart, overlapping = lambda memory: (memory[:20], memory[30:]), lambda memory: (memory[:20], memory[10:30])
    for inputs in (apart, overlapping):

        def on_leaf(fn, inputs=inputs):
            return lambda memory: fn(*inputs(memory * 1))

        assert_same_as_eager(on_leaf(compiled), on_leaf(dropping), torch.linspace(-2, 2, 50))
    (info, *_) = get_subgraph_info(compiled)
    assert any(region.compiler is CompilerType.EAGER for region in info.regions)
    assert info.overlapping_calls


# What a region must not be cut out of


def hook_on_a_value(x):
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    return y * 3


def test_a_hook_on_a_value_of_the_graph_is_called():
    """It hangs on the tensor that it was registered on, and what uses that tensor must go through it."""
    check(hook_on_a_value)


@pytest.mark.parametrize(
    "derivative",
    [
        torch.func.jacrev(lambda a: a.sin() * a.sum()),
        torch.func.grad(lambda a: (a.sin() * a).sum()),
        torch.func.hessian(lambda a: (a.sin() * a).sum()),
        torch.func.jacfwd(torch.sin),
        torch.vmap(torch.func.grad(lambda a: a.sin())),
        lambda x: torch.func.vjp(torch.sin, x)[1](x)[0],
    ],
    ids=["jacrev", "grad", "hessian", "jacfwd", "vmap of grad", "vjp"],
)
def test_derivatives_taken_within_the_graph(derivative):
    """jacrev differentiates what was computed before; cut in two, it is silently zero."""

    def fn(x):
        return derivative(x.cos()) * 2

    x = torch.linspace(0.1, 1, 3)
    torch.testing.assert_close(thunderfx(fn)(x), fn(x))


@pytest.mark.parametrize("fn", [lambda c, x: c(x).sum(), lambda c, x: (c(x) * x).sum()], ids=["alone", "beside"])
def test_a_second_derivative_raises_and_is_not_silently_constant(fn):
    """thunder's backward would pass for constant; with another path to the input nothing else would tell."""
    compiled = thunderfx(lambda x: x.sin() * x)
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with pytest.raises(RuntimeError, match=r"create_graph=True .* not supported by regions that thunder runs"):
        torch.autograd.grad(fn(compiled, x), x, create_graph=True)
    (gradient,) = torch.autograd.grad(fn(compiled, x), x)
    (eager,) = torch.autograd.grad(fn(lambda v: v.sin() * v, x), x)
    torch.testing.assert_close(gradient, eager)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, m, v: (F.batch_norm(x, m, v, training=True), m * 2, v + 1),
        lambda x, m, v: (F.instance_norm(x[None].mT, m, v, use_input_stats=True), m * 2),
        lambda x, m, v: (torch.batch_norm(x, None, None, m, v, True, 0.1, 1e-5, False), m.clone()),
        lambda x, m, v: (F.batch_norm(x, m, v, training=False), m * 2),
    ],
    ids=["batch_norm", "instance_norm", "torch.batch_norm", "evaluation"],
)
def test_running_statistics_read_after_they_were_written(fn):
    """thunder writes them at the region's end; a read in the same graph has to see the new ones."""

    def run(f):
        mean, var = torch.zeros(4), torch.ones(4)
        return f(matrix(), mean, var), mean, var

    torch.testing.assert_close(run(thunderfx(fn)), run(fn))


def test_batch_norm_by_itself_stays_with_thunder():
    """Where nobody looks at the statistics in the same graph."""

    def fn(x, m, v):
        return F.batch_norm(x, m, v, training=True).sin()

    compiled = thunderfx(fn)
    compiled(matrix(), torch.zeros(4), torch.ones(4))
    assert get_subgraph_info(compiled)[0].split_reasons == []


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.dropout(x, 0.5) + torch.randn(6, 4),
        lambda x: F.dropout(x, 0.5) * torch.randint(0, 9, (6, 4)),
        lambda x: F.dropout(F.dropout(x, 0.5), 0.5),
    ],
)
def test_dropout_without_gradients_keeps_its_place(fn):
    """thunder may move it behind another random operator; the generator's state alone would not tell."""
    compiled, x = thunderfx(fn), matrix()
    compiled(x)
    results = []
    for f in (compiled, fn):
        torch.manual_seed(1)
        results.append((f(x), torch.get_rng_state()))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("needs_gradient", [True, False])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.repeat(1, 1),
        lambda x: x.repeat_interleave(1, 0),
        lambda x: x.tile(1),
        lambda x: x.flip([]),
        lambda x: x.view_as(x),
        lambda x: x.reshape(6, 4),
        lambda x: x[...],
        lambda x: x[:],
        lambda x: x.transpose(0, 0),
        lambda x: x.contiguous(),
        lambda x: x.t(),
        lambda x: x.diagonal(),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: x.clone(),
    ],
)
def test_results_share_with_inputs_what_eagers_share(fn, needs_gradient):
    """A copy is a copy, a view is a view with a gradient function, and the input itself is the input itself."""

    def relation(f):
        x = matrix().requires_grad_(needs_gradient)
        y = f(x)
        shared = y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        return y is x, shared, y.is_leaf, y.requires_grad, y.stride()

    assert relation(thunderfx(fn)) == relation(fn)


def test_a_view_that_nobody_can_tell_from_its_operand_stays_with_thunder():
    """Of a value made in the graph, returned alone; returned beside its operand it can be told."""
    assert check(lambda x: x.sin().view(6, 4)).split_reasons == []

    def both(x):
        y = x.sin()
        return y, y.view(6, 4)

    info = check(both)
    assert [r.node for r in info.split_reasons] == ["view"]


# Found by trying to break it


def floats(*values):
    return torch.tensor(values, requires_grad=True)


def twice_the_same(x):
    y = x * 2
    return y, y.float()


def unread_draw(x):
    torch.rand(3)
    return x * torch.rand(3)


def statistics_alone(x, mean, var):
    F.batch_norm(x, mean, var, training=True)
    return x * 2


def detached_in_place(x):
    a = x * 3
    y = a * 2
    z = y.sum()
    y.detach_()
    return z


def without_a_derivative(x):
    y = x * 2
    y.ge_(0)
    return y


def masked_whole(q):
    mask = torch.ones(3, 3).tril().bool()
    mask[0] = False
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def masked_by_numbers(q):
    mask = torch.full((3, 3), float("-inf")).triu(1)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask + mask[0, 1] * torch.eye(3)[0].long(), scale=0.3)


def writes_only(a, b):
    a.add_(b * 2)


def modes_and_a_write(x, buffer):
    with torch.no_grad():
        a = x * 2
    b = x.sin().cos()
    with torch.no_grad():
        c = x * 3
    buffer.add_(1)
    return a + b + c


def operands(n, seed=0):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (lambda z: z * z / (z + 3), [torch.tensor([1 + 2j, 3 - 1j]).requires_grad_()]),
        (lambda x: (x.clamp(0, 1), x.clamp(min=0.5), torch.clamp(x, max=0.5)), [floats(0.0, 0.5, 1.0, 2.0, -1.0)]),
        (lambda x: F.elu(x) + F.selu(x) + F.celu(x) + F.mish(x), [floats(100.0, -100.0, 1.0)]),
        (lambda x: (torch.sigmoid(x), F.glu(x)), [floats(-100.0, 100.0, 0.0, 1.0, -1.0, 88.0)]),
        (lambda x: x.prod(), [floats(0.0, 2.0)]),
        (lambda x: (x**0, x**2, torch.pow(x, x.detach() + 1), 2**x), [floats(0.0, 2.0, 3.0)]),
        (lambda x: torch.atan2(x, x * 2), [floats(0.0, 2.0)]),
        (lambda x: torch.div(x, x.detach(), rounding_mode="floor") + x, [floats(1.0, 2.0)]),
        (lambda x: (F.relu(x), x.relu(), F.relu(x * 1, inplace=True)), [floats(float("nan"), 1.0, -1.0, 0.0)]),
        (masked_whole, [torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()]),
        (masked_by_numbers, [torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()]),
        (unread_draw, [floats(1.0, 2.0, 3.0)]),
        (lambda x: torch.rand_like(x) * x, [operands(3).detach().t()]),
        (twice_the_same, [floats(1.0, 2.0)]),
        (lambda x: F.cross_entropy(x, torch.tensor([1, 0]), label_smoothing=0.1, reduction="sum"), [operands(2)]),
        (lambda x: F.cross_entropy(x, torch.tensor([1, 0]), None, None, -100, None, "sum", 0.1), [operands(2)]),
        (statistics_alone, [operands(3), torch.zeros(4), torch.ones(4)]),
        (detached_in_place, [floats(1.0, 2.0)]),
        (without_a_derivative, [floats(1.0, -2.0)]),
        (writes_only, [torch.ones(3), torch.ones(3)]),
        (modes_and_a_write, [floats(1.0, 2.0), torch.zeros(1)]),
        (
            lambda b, x, w: torch.addmm(b, x, w.t(), beta=0),
            [floats(1.0, 2.0, 3.0), operands(2), operands(3)],
        ),
        (lambda x, s: x * s.sum(), [operands(2).detach().bfloat16().requires_grad_(), floats(1.0037)]),
        (lambda x: x.unfold(0, 2, 1) * 1, [torch.arange(4.0)]),
        (lambda x: checkpoint(lambda y: (y * 1).mul_(y).sin(), x * 1, use_reentrant=False), [operands(2)]),
    ],
)
def test_special_values_and_places_are_as_in_eager(fn, inputs):
    """Bounds, zeros, infinities of a derivative, NaN, rows that are masked whole, draws and statistics nobody reads."""
    assert_same(fn, thunderfx(fn), inputs)


def test_views_under_no_grad_stay_with_thunder_in_evaluation_and_show_their_gradients_in_a_result():
    """A view of a parameter needs a gradient even under no_grad: that is seen in a result, and nowhere inside."""
    weight = torch.nn.Parameter(matrix())

    def inside(x):
        return torch.addmm(x[:, 0], x, weight.t())

    def as_result(x):
        return weight.t(), x + 1

    with torch.no_grad():
        compiled = thunderfx(inside)
        x = torch.rand(6, 4)
        torch.testing.assert_close(compiled(x), inside(x))
        (info,) = get_subgraph_info(compiled)
        assert [r.compiler for r in info.regions] == [CompilerType.THUNDER]
        assert [t.requires_grad for t in thunderfx(as_result)(x)] == [t.requires_grad for t in as_result(x)]


@needs_cxx
def test_no_gradient_goes_through_a_view_made_under_no_grad():
    """Such a view of a leaf needs a gradient, as in eager, and is a leaf: it hands none on, in a graph or out of it."""

    def inside(x):
        with torch.no_grad():
            frozen = x.view(-1)
        return frozen * x.view(-1)

    def of_a_detached_one(x):
        with torch.no_grad():
            frozen = x.detach()[1:]
        return torch.sinc(frozen) * x[1:]

    def as_result(x):
        with torch.no_grad():
            frozen = x.view(-1)
        return frozen, x * 2

    for fn in (inside, of_a_detached_one):
        leaves = [floats(1.0, 2.0, 3.0), floats(1.0, 2.0, 3.0)]
        results = [fn(leaves[0]), thunderfx(fn)(leaves[1])]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*[torch.autograd.grad(r.sum(), x) for r, x in zip(results, leaves, strict=True)])
    for fn in (as_result, thunderfx(as_result)):
        x = floats(1.0, 2.0)
        frozen, twice = fn(x)
        assert (frozen.requires_grad, frozen.grad_fn, frozen.data_ptr()) == (True, None, x.data_ptr())
        assert twice.grad_fn is not None


def test_both_branches_of_cond_compile():
    """A branch's input shares its metadata with the graph's, which Dynamo reads once more after the backend."""

    def fn(x):
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))

    compiled = thunderfx(fn)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(compiled(x), fn(x))


def test_answers_about_gradients_are_not_shared_with_calls_that_need_none():
    """thunder has no derivative of remainder: that matters only where one is needed, whichever was compiled first."""

    def constant(x):
        return torch.remainder(x, x.detach() + 9).detach() * 1

    def needed(x):
        return torch.remainder(x, x.detach() + 9) * 2

    for fn in (constant, needed, constant):
        torch._dynamo.reset()
        assert_same(fn, thunderfx(fn), [floats(1.0, 2.0)])


def test_a_custom_operator_that_writes_or_prints_is_left_in_its_place():
    """Its schema says what it writes, also where no overload is named; what it prints, nothing says."""
    calls = []

    @torch.library.custom_op("thunder_fx_tests::bump", mutates_args=("x",))
    def bump(x: torch.Tensor) -> None:
        calls.append(1)
        x.add_(1)

    def fn(x):
        y = x * 2
        a = y + 1
        torch.ops.thunder_fx_tests.bump(y)
        return a, y + 1

    compiled = thunderfx(fn)
    x = torch.ones(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), fn(x))
    assert len(calls) == 4


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_region_compiled_inside_of_a_checkpoint_saves_as_often_as_it_does_when_it_is_run_again(dynamic):
    """Checkpoint counts what autograd saves: what is computed on fake tensors while compiling is none of it."""
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    compiled, x = thunderfx(model, dynamic=dynamic), torch.randn(2, 4, requires_grad=True)
    for _ in range(2):
        gradients = [
            torch.autograd.grad(checkpoint(fn, x, use_reentrant=False).sum(), (x, *model.parameters()))
            for fn in (compiled, model)
        ]
        torch.testing.assert_close(*gradients)


def test_hooks_on_what_is_saved_see_real_tensors_alone():
    """As many in the first call, which compiles, as in the next."""
    seen = []

    def pack(tensor):
        seen.append(type(tensor))
        return tensor

    compiled = thunderfx(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Sigmoid()))
    counts = []
    for _ in range(2):
        seen.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            compiled(torch.ones(2, 4, requires_grad=True)).sum().backward()
        assert set(seen) <= {torch.Tensor, torch.nn.Parameter}
        counts.append(len(seen))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_the_gradient_of_what_has_no_elements(shape, dynamic):
    """thunder's autograd Function asserts that its backward has read what it was given, which needs none of it."""
    x = torch.ones(*shape, requires_grad=True)
    compiled = thunderfx(lambda x: torch.nn.functional.pad(x, (1, 1)), dynamic=dynamic)
    for _ in range(2):
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
        assert gradient.shape == shape
