"""A region's callable: what it records when it fails, and who takes over."""

import concurrent.futures

import pytest
import torch

from tests.graph.test_numerics import nested_modes
from tests.graph.test_structure import captured
from tests.helpers import assert_same_as_eager, needs_cxx, sine
from thunder_fx import CompilerType, SplitReasonType, ThunderFXWarning, get_subgraph_info, last_backend, thunderfx
from thunder_fx.graph import regions, support


@pytest.fixture
def taken_for_supported(monkeypatch):
    """A cat that thunder refuses is said to be thunder's: as with an operator whose refusal shows only in a region."""
    real = support.Judge.reason_against
    monkeypatch.setattr(
        support.Judge,
        "reason_against",
        lambda self, node, around: None if node.target is torch.cat else real(self, node, around),
    )


def untraceable(x):
    return torch.cat([torch.tensor([]), x.sin()], -2) * 2  # thunder has no -2 for the empty 1-D tensor


@needs_cxx
def test_what_thunder_cannot_trace_is_inductors(taken_for_supported):
    """Found at the first run only; the result is right, and the record says who ran it and why."""
    compiled = thunderfx(untraceable)
    assert_same_as_eager(compiled, untraceable, torch.randn(4, 4))
    (info, *_) = get_subgraph_info(compiled)
    (region,) = info.regions
    assert region.compiler is CompilerType.TORCH_INDUCTOR
    assert region.error is None
    (reason,) = info.split_reasons
    assert reason.reason_type is SplitReasonType.EXCEPTION_TRACING
    assert reason.exception
    assert info.thunder_compiled_fns == info.thunder_compiled_fns_example_inputs == []
    assert [f.compiler for f in info.submodule_to_compiled_functions.values()] == [CompilerType.TORCH_INDUCTOR]


def test_with_symbolic_sizes_it_runs_eager(taken_for_supported):
    """Outside of Dynamo Inductor would compile for the sizes at hand, and be wrong for the next."""

    compiled = thunderfx(untraceable, dynamic=True)
    for n in (4, 5, 6):
        torch.testing.assert_close(compiled(torch.ones(n, n + 1)), untraceable(torch.ones(n, n + 1)))
    (info,) = get_subgraph_info(compiled)
    assert info.regions[0].compiler is CompilerType.EAGER


def test_it_works_without_a_record_too(taken_for_supported):
    """With the record gone the same happens, unrecorded."""
    compiled = thunderfx(untraceable, dynamic=True)
    backend = last_backend(compiled)
    backend._hook.forget()
    torch.testing.assert_close(compiled(torch.ones(4, 4)), untraceable(torch.ones(4, 4)))
    assert backend.subgraph_infos == []


@needs_cxx
def test_inductors_failure_after_that_runs_eager(taken_for_supported, monkeypatch):
    """Two compilers fail, and the numbers are right."""

    def broken(*args, **kwargs):
        raise RuntimeError("not today")

    monkeypatch.setattr(torch._inductor, "compile", broken)
    compiled = thunderfx(untraceable)
    with pytest.warns(ThunderFXWarning, match="not today"):
        torch.testing.assert_close(compiled(torch.ones(4, 4)), untraceable(torch.ones(4, 4)))
    (info,) = get_subgraph_info(compiled)
    assert (info.regions[0].compiler, info.regions[0].error) == (CompilerType.EAGER, "RuntimeError: not today")


def test_a_users_executor_that_fails_while_tracing_is_a_failure():
    """Not supported is thunder's word; a user's own code that raises is an error, and is raised."""
    import thunder
    from thunder.extend import OperatorExecutor, deregister_executor, register_executor

    executor = OperatorExecutor("thunder_fx_tests")
    register_executor(executor)
    try:

        def checker(*args, **kwargs):
            raise RuntimeError("boom in an executor")

        op = executor.register_operator("own_sin", like=torch.sin, fn=torch.sin)
        executor.register_implementation(thunder.torch.sin, op, checker=checker)
        compiled = thunderfx(sine, executors=[executor])
        with pytest.raises(RuntimeError, match="boom in an executor"):
            compiled(torch.ones(3))
        (info,) = get_subgraph_info(compiled)
        assert info.regions[0].error == "RuntimeError: boom in an executor"
        assert info.regions[0].compiler is CompilerType.THUNDER
    finally:
        deregister_executor(executor)


def test_static_inputs_are_not_checked_twice():
    """Dynamo's guards have checked shapes and dtypes; thunder's prologue does so only where sizes are symbolic."""
    compiled = thunderfx(sine)
    compiled(torch.ones(3))
    (info,) = get_subgraph_info(compiled)
    assert "check_tensor_shape_and_metadata" not in str(info.regions[0].prologue_traces[-1])
    torch._dynamo.reset()
    dynamic = thunderfx(sine, dynamic=True)
    dynamic(torch.ones(3))
    (info,) = get_subgraph_info(dynamic)
    assert "check_tensor_shape_and_metadata" in str(info.regions[0].prologue_traces[-1])


def test_reasons_carry_the_line_and_the_node():
    """For each node that thunder does not run, and for no other."""

    def fn(x):
        a = torch.sinc(x)
        return torch.special.i1(a) + x.sin()

    reasons = support.reasons_against(captured(fn, torch.randn(3)), {})
    assert [(r.node, r.source.rpartition(":")[2].split(",")[0]) for r in reasons.values()] == [
        (node.name, str(fn.__code__.co_firstlineno + line)) for node, line in zip(reasons, (1, 2), strict=True)
    ]


# The short way


def takes_short_way(compiled):
    """Whether the (only) region's next call goes straight to thunder's computation."""
    (info, *_) = get_subgraph_info(compiled)
    (region,) = [module for module in info.split_graph_module.children() if isinstance(module, regions.CompiledRegion)]
    return region.run._run.__name__ == "<lambda>"


def forbid_thunders_own_way(compiled):
    def fails(*args, **kwargs):
        raise AssertionError("thunder looked its cache up")

    (info, *_) = get_subgraph_info(compiled)
    for region in info.split_graph_module.children():
        region.run.jitted.forward = fails


def weighted(x):
    return (x.sin() * x, x + 1)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_second_call_goes_straight_to_the_computation(requires_grad):
    """Without thunder's prologue; values and gradients are eager's, call after call."""
    compiled = thunderfx(weighted)
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=requires_grad)
    compiled(x)
    assert takes_short_way(compiled)
    forbid_thunders_own_way(compiled)
    for factor in (1, 2):
        y = (x.detach() * factor).requires_grad_(requires_grad)
        torch.testing.assert_close(compiled(y), weighted(y))
        if requires_grad:
            got, want = (torch.autograd.grad(sum(r.sum() for r in fn(y)), y) for fn in (compiled, weighted))
            torch.testing.assert_close(got, want)


def test_constants_and_repeated_outputs_go_the_short_way_too():
    """A constant is an input like any other; a result may be returned twice, or be an input."""
    constant = torch.tensor([1.0, 2.0, 3.0])

    def fn(x, y):
        z = x * constant + y
        return z, z, y, z.sum()

    compiled = thunderfx(fn)
    x, y = torch.rand(3, requires_grad=True), torch.rand(3)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, y), fn(x, y))
    assert compiled(x, y)[2] is y


@pytest.mark.parametrize(
    "fn", [lambda x, m, v: torch.nn.functional.batch_norm(x, m, v, training=True)], ids=["running statistics"]
)
def test_a_region_that_writes_into_its_inputs_keeps_thunders_own_way(fn):
    """Aliasing matters to it, which thunder's prologue checks and no guard of Dynamo does."""
    compiled = thunderfx(fn)
    compiled(torch.rand(4, 3), torch.zeros(3), torch.ones(3))
    assert not takes_short_way(compiled)


def ways(compiled):
    """For which sizes a region that has symbolic ones goes straight to what thunder compiled."""
    (info,) = get_subgraph_info(compiled)
    (region,) = info.split_graph_module.children()
    return list(region.run._ways)


def test_symbolic_sizes_have_a_short_way_each():
    """thunder compiles for each set of sizes that it meets, and they tell which is which: shapes, and numbers."""

    def fn(x, y, n):
        return x.sin() * n + y.reshape(-1)[: x.shape[-1]], x.shape[0] * n

    compiled = thunderfx(fn, dynamic=True)
    calls = [(3, 4, 5), (4, 3, 5), (3, 4, 6), (5, 6, 7), (3, 4, 5), (4, 3, 5)]
    for rows, columns, n in calls:
        x = torch.rand(rows, columns, requires_grad=True)
        twin = x.detach().clone().requires_grad_()
        y = torch.rand(columns, rows).t()
        found, wanted = compiled(x, y, n), fn(twin, y, n)
        torch.testing.assert_close(found, wanted)
        found[0].sum().backward()
        wanted[0].sum().backward()
        torch.testing.assert_close(x.grad, twin.grad)
    (info,) = get_subgraph_info(compiled)
    assert info.regions[0].compilations == len(ways(compiled)) == 4


def test_a_float_is_left_to_thunders_own_way():
    """nan is no key that finds itself."""
    compiled = thunderfx(lambda x, f: x * f, dynamic=True)
    for f in (1.5, 2.5, float("nan"), 1.5):
        torch.testing.assert_close(compiled(torch.ones(3), f), torch.ones(3) * f, equal_nan=True)


def test_threads_that_compile_for_sizes_of_their_own_at_once():
    """None takes another's for its own. The region itself, since Dynamo compiles anew for threads at once."""
    compiled = thunderfx(lambda x: x.sin() * 2, dynamic=True)
    compiled(torch.ones(2))
    (info,) = get_subgraph_info(compiled)
    (region,) = info.split_graph_module.children()
    sizes = list(range(3, 19)) * 3
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: region(torch.ones(n), n), sizes))
    assert len(ways(compiled)) > 8
    for n, result in zip(sizes * 2, results + [region(torch.ones(n), n) for n in sizes], strict=True):
        torch.testing.assert_close(result, torch.ones(n).sin() * 2)


def test_a_size_that_cannot_be_traced_gives_the_region_away(monkeypatch):
    """Eager runs it from then on, for all sizes."""

    def fails(self, *args):
        raise RuntimeError("cannot be traced")

    compiled = thunderfx(sine, dynamic=True)
    compiled(torch.ones(3))
    with monkeypatch.context() as patch:
        patch.setattr(regions._ThunderRun, "_first_call", fails)
        patch.setattr(regions._thunder, "is_tracing_failure", lambda error: True)
        torch.testing.assert_close(compiled(torch.ones(4)), sine(torch.ones(4)))
    for n in (3, 5):
        torch.testing.assert_close(compiled(torch.ones(n)), sine(torch.ones(n)))
    (info,) = get_subgraph_info(compiled)
    assert info.regions[0].compiler is CompilerType.EAGER


def test_a_check_that_no_guard_covers_keeps_thunders_own_way(monkeypatch):
    """The table of covered checks is what decides."""
    left_out = {key: value for key, value in regions.GUARDED_BY_DYNAMO.items() if key != "default_dtype"}
    monkeypatch.setattr(regions, "GUARDED_BY_DYNAMO", left_out)
    compiled = thunderfx(sine)
    compiled(torch.ones(3))
    assert not takes_short_way(compiled)


def test_a_region_that_sets_the_grad_mode_sets_it_in_every_call():
    """thunder itself does so only when it compiles the region."""

    compiled = thunderfx(nested_modes)
    x = torch.rand(3, requires_grad=True)
    for _ in range(3):
        assert compiled(x).requires_grad
        assert torch.is_grad_enabled()


# What changes between two calls, for each check that the short way leaves out


def under(context):
    def changed(compiled, x):
        with context():
            return compiled(x)

    return changed


def with_default_dtype(compiled, x):
    torch.set_default_dtype(torch.float64)
    try:
        return compiled(x)
    finally:
        torch.set_default_dtype(torch.float32)


def factory(x):
    return x @ torch.ones(3, 3) + torch.full((3,), 2.0) + x.sum()


CHANGES = {
    "grad mode": under(torch.no_grad),
    "inference mode": under(torch.inference_mode),
    "autocast": under(lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast to another dtype": under(lambda: torch.autocast("cpu", torch.float16)),
    "default device": under(lambda: torch.device("meta")),
    "default dtype": lambda f, x: with_default_dtype(f, x.double()),
    "requires_grad": lambda f, x: f(x.detach()),
    "shape": lambda f, x: f(torch.cat([x, x])),
    "dtype": lambda f, x: f(x.to(torch.float64).to(torch.float32) * 2),
    "strides": lambda f, x: f(x.t().contiguous().t()),
    "class": lambda f, x: f(torch.nn.Parameter(x.detach())),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_guard_covers_may_change_between_calls(name):
    """thunder's prologue checks are left out because Dynamo has checked the same: so each may change, and back."""
    change = CHANGES[name]
    compiled = thunderfx(factory)
    x = torch.rand(3, 3, requires_grad=True)

    def described(fn, call):
        try:
            result = call(fn, x)
        except Exception as error:  # ones on the meta device cannot be multiplied with x: then eager says so too
            return type(error).__name__
        gradient = torch.autograd.grad(result.float().sum(), x, allow_unused=True)[0] if result.requires_grad else None
        return result.detach(), result.dtype, result.requires_grad, result.is_inference(), gradient

    def plain(fn, x):
        return fn(x)

    for call in (plain, change, plain, change, plain):
        ours, eager = described(compiled, call), described(factory, call)
        if isinstance(eager, str):
            assert isinstance(ours, str)
            continue
        assert ours[1:4] == eager[1:4]
        torch.testing.assert_close(ours[0], eager[0], rtol=1e-2 if "autocast" in name else 1e-5, atol=1e-5)
        torch.testing.assert_close(ours[4], eager[4], rtol=1e-2 if "autocast" in name else 1e-5, atol=1e-5)


def test_the_training_flag_may_change_between_calls():
    """A guard of Dynamo's, on the Module."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(3))
    twin = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(3))
    twin.load_state_dict(model.state_dict())
    compiled = thunderfx(model)
    x = torch.rand(4, 3)
    for training in (True, False, True, False):
        for module in (compiled, twin):
            module.train(training)
        torch.manual_seed(3)
        got = compiled(x)
        torch.manual_seed(3)
        torch.testing.assert_close(got, twin(x))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))


@pytest.mark.parametrize(
    "second", [lambda x: (x, x), lambda x: (x, x[:]), lambda x: (x[0], x[1]), lambda x: (x[:1], x[1:])]
)
def test_inputs_may_be_the_same_or_overlap_in_a_later_call(second):
    """Nothing is written: two names of one tensor are two inputs."""

    def fn(a, b):
        return a * 2 + b.sin()

    compiled = thunderfx(fn)
    x = torch.rand(2, 3)
    for inputs in ((x, x + 1), second(x), (x, x * 2), second(x)):
        torch.testing.assert_close(compiled(*inputs), fn(*inputs))


def test_an_input_that_no_result_depends_on_gets_no_gradient():
    """Not one of zeros: an optimiser would decay its momentum, and its weights."""

    def fn(x, y):
        unused = x.sin().detach() * 2
        return y.cos() + unused.round().detach()

    x, y = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
    thunderfx(fn)(x, y).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(y.grad, -y.detach().sin())
