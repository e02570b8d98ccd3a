"""Operators that thunder lacks, in terms of those it has: thunder runs all of each, and all is as in eager."""

import pytest
import torch
import torch.nn.functional as F

from tests.differential.compare import assert_same
from tests.helpers import needs_cxx
from thunder_fx import CompilerType, get_subgraph_info, thunderfx
from thunder_fx.graph import equivalents


def floats(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


A, B, C = floats(3, 4), floats(4, 5, seed=1), floats(3, 5, seed=2)
BIAS, VECTOR = floats(5, seed=3), floats(4, seed=4)
BATCH = floats(2, 3, 4, seed=5)
INTEGERS = torch.arange(12).reshape(3, 4) % 5
QUERY, KEY, VALUE = floats(2, 4, 3, 8), floats(2, 2, 3, 8, seed=1), floats(2, 2, 3, 8, seed=2)

CASES = {
    "mm": (torch.mm, [A, B]),
    "addmm bias": (torch.addmm, [BIAS, A, B]),
    "addmm": (lambda c, a, b: c.addmm(a, b), [C, A, B]),
    "addmm factors": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), [C, A, B]),
    "addmm beta 0": (lambda c, a, b: torch.addmm(c * float("nan"), a, b, beta=0), [C.detach(), A, B]),
    "addmv": (lambda c, a, v: torch.addmv(c[:, 0], a, v, alpha=3), [C, A, VECTOR]),
    "addr": (lambda c, u, v: torch.addr(c, u[:, 0], v, beta=2), [C, A, BIAS]),
    "baddbmm": (lambda c, x, b: torch.baddbmm(c, x, b.expand(2, 4, 5), beta=2), [C, BATCH, B]),
    "addbmm": (lambda c, x, b: torch.addbmm(c, x, b.expand(2, 4, 5)), [C, BATCH, B]),
    "new_ones": (lambda x: x.new_ones(2, 3) * x[0, 0], [A.detach()]),
    "new_ones dtype": (lambda x: x.new_ones((2, 3), dtype=torch.int32), [A]),
    "new_zeros": (lambda x: x.new_zeros(x.shape) + x, [INTEGERS]),
    "new_full": (lambda x: x.new_full((2,), 7.5) * x[0, :2], [A]),
    "scalar_tensor": (lambda x: torch.scalar_tensor(3) * x, [A]),
    "eye": (lambda x: torch.eye(3) @ x, [A]),
    "eye wide": (lambda x: torch.eye(3, 4, dtype=torch.float64) + x, [A]),
    "double": (lambda x: x.double() * 2, [A]),
    "half": (lambda x: x.half() + 1, [A]),
    "bfloat16": (lambda x: x.bfloat16() * 3, [A]),
    "bool": (lambda x: x.bool().logical_not(), [INTEGERS]),
    "short": (lambda x: x.short() + 1, [INTEGERS]),
    "binary min": (lambda x: torch.min(x, x.new_full((3, 4), 2)), [INTEGERS]),
    "binary max": (lambda a, b: a.max(b[:, :3].t()), [A, B[:, :3].detach().requires_grad_()]),
    "clamp_min": (lambda x: x.clamp_min(0.1), [A]),
    "clamp_max": (lambda x: torch.clamp_max(x, 0.1), [A]),
    "mod": (lambda x: (x - 3) % 4, [INTEGERS]),
    "scalar plus": (lambda x: x + x.sum(), [A]),
    "scalar minus": (lambda x: x.mean() - x, [A]),
    "scalar times": (lambda x, i: i * x.sum(), [A, INTEGERS]),
    "scalar over": (lambda x: x / (x * x).sum(), [A]),
    "scalar of more bits": (lambda x: x * x.sum().double(), [A]),
    "scalar of fewer bits": (lambda x: x.double() * x.sum(), [A]),
    "cat empty": (lambda x: torch.cat([torch.tensor([]), x], dim=-2) * 2, [BATCH]),
    "cat empty transposed": (lambda x: torch.cat([x.transpose(0, 1), torch.tensor([])], 1), [BATCH]),
    "cat empty promotes": (lambda x: torch.cat([torch.tensor([], dtype=torch.float64), x], 1), [A]),
    "cat empty between": (lambda a, c: torch.cat([a, torch.tensor([]), c], 1), [A, C]),
    "diff": (torch.diff, [A]),
    "diff twice": (lambda x: x.diff(n=2, dim=0), [A]),
    "diff of ends": (lambda x: torch.diff(x, prepend=x[:, :1] - 1, append=x[:, -1:]), [INTEGERS]),
    "diff of booleans": (lambda x: torch.diff(x > 2), [INTEGERS]),
    "swapaxes": (lambda x: x.swapaxes(0, 1) * 2, [A]),
    "narrow": (lambda x: x.narrow(1, 1, 2) * 2, [A]),
    "narrow from behind": (lambda x: torch.narrow(x, 0, -2, 2) * 2, [A]),
    "hstack": (lambda a, c: torch.hstack([a, c]), [A, C]),
    "hstack vectors": (lambda a, b: torch.hstack([a, b]), [VECTOR, BIAS]),
    "vstack": (lambda a: torch.vstack([a, a * 2]), [A]),
    "tile": (lambda x: x.tile(2), [A]),
    "tile more": (lambda x: torch.tile(x, (2, 1, 3)), [A]),
    "grouped attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        [QUERY, KEY, VALUE],
    ),
    "grouped and causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True),
        [QUERY, KEY, VALUE],
    ),
    "grouped of equals": (lambda q: F.scaled_dot_product_attention(q, q, q, enable_gqa=True), [QUERY]),
    "clamp": (lambda x: (x.clamp(-1, 1), x.clip(min=0.5), torch.clamp(x, max=0)), [A]),
    "clamp the wrong way round": (lambda x: x.clamp(1, -1), [A]),
    "relu": (lambda x: F.relu(x) + x.relu() + torch.relu(x - 1), [A]),
    "sigmoid": (lambda x: x.sigmoid() * torch.sigmoid(x * 50), [A]),
    "sigmoid of halves": (lambda x: torch.sigmoid(x), [A.detach().bfloat16()]),
    "attention masked by truth": (
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.ones(3, 3).tril().bool(), enable_gqa=True
        ),
        [QUERY, KEY, VALUE],
    ),
    "attention masked by numbers": (
        lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(3, 3), scale=0.5),
        [QUERY],
    ),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), [A, VECTOR]),
    "rms_norm eps": (lambda x: F.rms_norm(x, (3, 4), eps=0.1), [BATCH]),
    "layer_norm": (lambda x, w: F.layer_norm(x.mT, (3,), w), [BATCH, torch.rand(3)]),
    "masked_fill": (lambda x: x.mT.masked_fill(x.mT > 0, 1.0), [BATCH]),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), [BATCH]),
}


@pytest.mark.parametrize("name", CASES)
def test_thunder_runs_the_equivalent(name):
    """One region of thunder; values, gradients, dtypes, strides and aliasing are eager's."""
    function, inputs = CASES[name]
    compiled = thunderfx(function)
    assert_same(function, compiled, inputs)
    (info,) = get_subgraph_info(compiled)
    assert [region.compiler for region in info.regions] == [CompilerType.THUNDER], info.split_reasons


LEFT = {
    "half precision": (lambda c, a, b: torch.addmm(c.half(), a.half(), b.half()), [C.detach(), A.detach(), B.detach()]),
    "out": (lambda a, b: torch.mm(a, b, out=torch.empty(3, 5)), [A.detach(), B.detach()]),
    "a layout": (lambda x: x.new_zeros(2, 2, pin_memory=False, layout=torch.strided), [A]),
    "min by dimension": (lambda x: torch.min(x, 0), [A]),
    "empty factory keyword": (lambda x: torch.eye(3, requires_grad=False) @ x, [A]),
    "linspace": (lambda x: torch.linspace(0, 1, 4) * x, [A]),
    "logspace": (lambda x: torch.logspace(0, 1, 4) * x, [A]),
    "keywords by other names": (lambda x: F.softplus(input=x, beta=2), [A]),
    "a generator": (lambda x: torch.full_like(x, 2, memory_format=torch.preserve_format) * x, [A]),
    "hann window": (lambda x: torch.hann_window(4) * x, [A]),
    "complex": (lambda x: torch.complex(x, x).abs(), [A]),
    "triangle indices": (lambda x: x[tuple(torch.tril_indices(3, 3))], [A]),
}


@needs_cxx
@pytest.mark.parametrize("name", LEFT)
def test_what_has_no_exact_equivalent_is_found_before_the_run(name):
    """A factory, an overload or a keyword that thunder does not take goes to Inductor or eager, with the reason."""
    function, inputs = LEFT[name]
    compiled = thunderfx(function)
    assert_same(function, compiled, inputs)
    (info,) = get_subgraph_info(compiled)
    kinds = {region.compiler for region in info.regions}
    assert kinds == {CompilerType.THUNDER} or info.split_reasons
    assert not any(reason.reason_type.name == "EXCEPTION_TRACING" for reason in info.split_reasons)


def test_every_entry_is_tested():
    """The table holds nothing that no case above runs."""
    entries = {entry.__qualname__.partition(".")[0] for entry in equivalents.TABLE.values()}
    tested = {
        *("mm", "addmm", "addmv", "addr", "baddbmm", "addbmm", "new_ones", "new_zeros", "new_full", "scalar_tensor"),
        *("eye", "_conversion", "binary_min", "binary_max", "clamp_min", "clamp_max", "mod", "_with_expanded_scalar"),
        *("cat_with_empty", "diff", "swapaxes", "narrow", "hstack", "vstack", "tile"),
        *("rms_norm", "layer_norm", "masked_fill", "interpolate", "clamp", "relu", "sigmoid", "attention"),
    }
    assert entries == tested


def test_what_thunder_takes_stays_as_it_is():
    """An equivalent is for what is refused: torch.max by dimension, and a plain attention, are not rewritten."""
    compiled = thunderfx(lambda q: F.scaled_dot_product_attention(q, q, q) + q.max(-1, keepdim=True).values)
    compiled(QUERY)
    (info,) = get_subgraph_info(compiled)
    (region,) = info.regions
    assert [name for name in region.nodes if "attention" in name] == ["scaled_dot_product_attention"]
