"""Random programs of 3 to 15 operators, with in-place writes, views and mixed dtypes: one for each seed, as text."""

import random

import torch

# Of a tensor a, and another b, and integers: how to write a new value. Some do not fit some shapes: eager says so.
PURE = (
    "{a}.sin()",
    "{a}.abs()",
    "{a} * 2",
    "{a} + 1.5",
    "{a} - {b}",
    "{a} + {b}",
    "{a} * {b}",
    "{a} / ({b} * {b} + 1)",
    "torch.maximum({a}, {b})",
    "torch.where({a} > 0, {a}, {b})",
    "{a}.clamp(-1, 1)",
    "{a}.relu()",
    "{a}.tanh()",
    "{a}.exp().clamp(max=3)",
    "{a}.sum(-1, keepdim=True)",
    "{a}.sum()",
    "{a}.mean(0)",
    "{a}.amax(0)",
    "{a}.softmax(-1)",
    "{a}.cumsum(0)",
    "{a}.double()",
    "{a}.float()",
    "{a}.long()",
    "{a}.bool()",
    "{a}.clone()",
    "{a} @ {b}",
    "torch.cat([{a}, {b}])",
    "torch.stack([{a}, {b}])",
    "{a}.contiguous()",
    "torch.zeros_like({a})",
    "{a}.new_ones({a}.shape)",
    "torch.arange(4.0) + {a}",
    "{a}.detach()",
    "torch.diff({a})",
    "torch.sinc({a})",
    "{a}.sort(0).values",
    "{a}.clone().unsqueeze_(0)",
    "{a}.flip(0)",
    "{a}.masked_fill({a} > 1, 0.5)",
    "{a} // 2",
    "{a} ** 2",
)
VIEWS = (
    "{a}[0]",
    "{a}[:, 1]",
    "{a}[1:3]",
    "{a}[:, ::2]",
    "{a}.t()",
    "{a}.view(-1)",
    "{a}.view(2, 8)",
    "{a}.unsqueeze(0)",
    "{a}.transpose(0, -1)",
    "{a}.expand(2, *{a}.shape)",
    "{a}.chunk(2)[1]",
    "{a}.reshape(-1)",
    "{a}[None]",
    "{a}.diagonal()",
    "{a}.detach()",
)
WRITES = (
    "{a}.mul_(2)",
    "{a}.add_({b})",
    "{a}.sub_({b})",
    "{a} += {b}",
    "{a} *= 0.5",
    "{a}.clamp_(-2, 2)",
    "{a}.relu_()",
    "{a}.zero_()",
    "{a}.fill_(1)",
    "{a}.copy_({b})",
    "{a}[0] = {b}",
    "{a}[1:3] = 2",
    "{a}[{a} > 1] = 0",
    "{a}.masked_fill_({a} > 0, -1)",
    "{a}.sin_()",
    "{a}[:, 0] += 1",
)
INPUTS = ("x", "y", "i")


def inputs():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 4, generator=generator).requires_grad_()
    y = torch.randn(4, 4, generator=generator, dtype=torch.float64).requires_grad_()
    return [x, y, torch.randint(-2, 3, (4, 4), generator=generator)]


def program(seed):
    """The source of `def program(x, y, i)`, which eager runs, with its backward."""
    for attempt in range(100):
        source = _draw(random.Random(f"{seed}/{attempt}"))
        if source is not None and _runs(source):
            return source
    raise AssertionError(f"no program for seed {seed}")


def compiled_from(source):
    scope = {"torch": torch}
    exec(source, scope)
    return scope["program"]


def _draw(rng):
    """Line by line, leaving out what eager refuses; None where too little is left."""
    scope = {"torch": torch}
    for name, tensor in zip(INPUTS, inputs(), strict=True):
        scope[name] = tensor.detach().clone()
    names, lines = list(INPUTS), []
    wanted = rng.randint(3, 15)
    for _ in range(4 * wanted):
        kind = rng.choices((PURE, VIEWS, WRITES), weights=(5, 2, 3))[0]
        a, b = rng.choice(names[-6:]), rng.choice(names)
        if kind is WRITES and a in INPUTS and rng.random() < 0.6:
            continue  # writes to inputs are rarer than others
        line = rng.choice(kind).format(a=a, b=b)
        if kind is not WRITES:
            names_new = f"v{len(lines)}"
            line = f"{names_new} = {line}"
        try:
            exec(line, scope)
        except (RuntimeError, IndexError, TypeError):
            continue
        if kind is not WRITES:
            names.append(names_new)
        lines.append(line)
        if len(lines) == wanted:
            break
    if len(lines) < 3:
        return None
    made = names[len(INPUTS) :] or names
    results = sorted({made[-1], *rng.sample(names, rng.randint(1, 2))})
    body = "".join(f"    {line}\n" for line in lines)
    return f"def program(x, y, i):\n{body}    return {', '.join(results)},\n"


def _runs(source):
    from tests.differential.compare import observed

    try:
        observed(compiled_from(source), inputs())
    except RuntimeError:  # autograd refuses some writes, at once or in the backward
        return False
    return True
