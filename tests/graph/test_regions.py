"""A region's callable: what it records when it fails, and who takes over."""

import pytest
import torch

from tests.graph.test_structure import captured
from tests.helpers import assert_same_as_eager, needs_cxx, sine
from thunder_fx import CompilerType, SplitReasonType, ThunderFXWarning, get_subgraph_info, last_backend, thunderfx
from thunder_fx.graph import support


@pytest.fixture
def taken_for_supported(monkeypatch):
    """A cat that thunder refuses is said to be thunder's: as with an operator whose refusal shows only in a region."""
    real = support._reason_against
    monkeypatch.setattr(
        support,
        "_reason_against",
        lambda node, *rest: None if node.target is torch.cat else real(node, *rest),
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
