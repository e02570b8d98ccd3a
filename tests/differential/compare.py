"""All of a call that could differ from eager's: values, gradients, dtypes, strides, aliasing, inputs after it."""

import torch


def observed(fn, inputs, *, seed=1):
    """A call on copies of the inputs, and its backward; everything of it that somebody could see.

    Inputs are a list of tensors; floating ones require gradients where the original does. A leaf that needs a gradient
    cannot be written to: the function gets the result of a multiplication by one.
    """
    torch.manual_seed(seed)
    leaves = [_copy(x) for x in inputs]
    given = [_not_a_leaf(x) if x.requires_grad else x for x in leaves]
    result = fn(*given)
    outputs = [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    seen = {
        "outputs": [_described(x) for x in outputs],
        "aliasing": _aliasing([*given, *outputs]),
        "inputs after the call": [_described(x) for x in given],
        "numbers": [x for x in torch.utils._pytree.tree_leaves(result) if not isinstance(x, torch.Tensor)],
        "values": [x.detach().clone() for x in outputs],
        "input values": [x.detach().clone() for x in given],
    }
    # Weighted, so that a gradient that goes to the wrong element shows.
    terms = [(x.abs() if x.is_complex() else x, index) for index, x in enumerate(outputs, 1) if x.requires_grad]
    weights = [torch.linspace(index, index + 1, x.numel(), dtype=x.dtype).reshape(x.shape) for x, index in terms]
    loss = sum((x * weight).sum() for (x, _), weight in zip(terms, weights, strict=True))
    if isinstance(loss, torch.Tensor):
        loss.backward()
    seen["gradients"] = [x.grad for x in leaves]
    seen["generator"] = torch.get_rng_state()
    return seen


def _copy(x):
    twin = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    twin.copy_(x.detach())
    return twin.requires_grad_(x.requires_grad)


def _not_a_leaf(x):
    """The same strides, as `x * 1` would not have of a transposed one."""
    return x.clone()


def _described(x):
    # Where an empty tensor begins means nothing, and how far it is to the next of a single element.
    steps = [stride if size > 1 else "-" for size, stride in zip(x.shape, x.stride(), strict=True)]
    strides = f"strides {steps}, offset {x.storage_offset() if x.numel() else 0}"
    return f"{x.dtype} of shape {tuple(x.shape)}, {strides}, requires_grad {x.requires_grad}"


def _aliasing(tensors):
    """For each tensor the first one that shares its storage."""
    first = {}
    return [first.setdefault(x.untyped_storage().data_ptr() or id(x), index) for index, x in enumerate(tensors)]


# Of values near 1; a double may have been a float on its way, and half precision is rounded less often in fused code.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
OF_HALF = {"rtol": 2e-2, "atol": 2e-2}


def assert_same(fn, compiled, inputs):
    """The first call, which compiles, and the second, which may take another way, are both as eager's."""
    want = observed(fn, inputs)
    tolerance = OF_HALF if any("float16" in described for described in want["outputs"]) else TOLERANCE
    for _ in range(2):
        seen = observed(compiled, inputs)
        for what in ("outputs", "aliasing", "inputs after the call", "numbers"):
            assert seen[what] == want[what], f"{what}: {seen[what]}; eager: {want[what]}"
        seen["gradients"] = _without_zeros_for_none(seen, want, inputs)
        for what in ("values", "input values", "gradients", "generator"):
            torch.testing.assert_close(
                seen[what], want[what], equal_nan=True, msg=lambda m, w=what: f"{w}: {m}", **tolerance
            )


def _without_zeros_for_none(seen, want, inputs):
    """A written input on which no result depends has a gradient of zeros in any compiled graph, torch.compile's too."""
    changed = [not torch.equal(x.detach(), after) for x, after in zip(inputs, want["input values"], strict=True)]
    return [
        None if theirs is None and is_changed and ours is not None and not ours.any() else ours
        for ours, theirs, is_changed in zip(seen["gradients"], want["gradients"], changed, strict=True)
    ]
