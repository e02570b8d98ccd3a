"""`python -m thunder_fx.demo`: the main job on a small transformer, which this module brings, and what came of it."""

from __future__ import annotations

import importlib.metadata
import pathlib
import sys
import tempfile
import textwrap
import time

import torch
from torch import nn

import thunder_fx
from thunder_fx.subgraph import SubgraphInfo

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH = 64, 32, 4, 16, 2


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a norm and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.queries_keys_values(self.attention_norm(x)).view(BATCH, LENGTH, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        y: torch.Tensor = x + self.feed(self.feed_norm(x))
        return y


class Transformer(nn.Module):
    """A language model of two blocks; its positions are encoded by sinc, an operator that thunder lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.frequencies = nn.Parameter(torch.rand(WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(LENGTH, device=ids.device).unsqueeze(1) * self.frequencies
        x = self.tokens(ids) + torch.sinc(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def main() -> int:
    """Compile, run forward and backward, compare with eager, tell what happened; 0 if the numbers are eager's."""
    torch.manual_seed(0)
    model, ids = Transformer(), torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"thunder_fx {thunder_fx.__version__}, torch {torch.__version__}, "
          f"thunder {importlib.metadata.version('lightning-thunder')}")  # fmt: skip
    print(f"A transformer of 2 blocks and {parameters:,} parameters.\n")

    loss, gradients = _run(model, model, ids)
    print("compiled = thunderfx(model); compiled(ids).backward()", flush=True)
    print("  compiling and running (the first time takes longest) ...", flush=True)
    start = time.perf_counter()
    compiled = thunder_fx.thunderfx(model)
    compiled_loss, compiled_gradients = _run(compiled, model, ids)
    print(f"  {time.perf_counter() - start:.1f} s to the first loss and gradients")
    worst = max((a - b).abs().max().item() for a, b in zip(gradients, compiled_gradients, strict=True))
    print(f"  loss {compiled_loss:.6f}, eager {loss:.6f}; gradients differ by at most {worst:.1e}\n")

    explanation = thunder_fx.explain(compiled)
    print("explain(compiled).summary()", flush=True)
    print(explanation.summary())
    page = pathlib.Path(tempfile.mkdtemp()) / "explanation.html"
    explanation.to_html(page)
    print(f"explain(compiled).to_html(...): {page}")

    print("\nget_subgraph_info(compiled)", flush=True)
    for info in thunder_fx.get_subgraph_info(compiled):
        _describe(info)
    trace = str(thunder_fx.last_traces(compiled)[-1])
    print(f"\nlast_traces(compiled)[-1]: {len(trace.splitlines())} lines; it ends with")
    print("\n".join("  " + textwrap.shorten(line, 76, placeholder=" ...") for line in trace.splitlines()[-3:]))
    print("\nsave_reproducer(compiled, folder).verify(): each script in a process of its own", flush=True)
    verified = _save(compiled)
    agrees = verified and abs(compiled_loss - loss) < 1e-4 and worst < 1e-4
    print("\nThe numbers are eager's." if agrees else "\nTHE NUMBERS DIFFER FROM EAGER'S.")
    return 0 if agrees else 1


def _run(fn: nn.Module, model: nn.Module, ids: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
    """The loss, and the gradients of the model's parameters."""
    model.zero_grad()
    loss = fn(ids)
    loss.backward()
    return loss.item(), [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def _save(compiled: nn.Module) -> bool:
    """Write a reproducer and run it; whether all of its scripts agree with eager."""
    bundle = thunder_fx.save_reproducer(compiled, pathlib.Path(tempfile.mkdtemp()) / "reproducer")
    outcomes = bundle.verify(on_result=lambda name, outcome: print(f"  {name:<32} {outcome}", flush=True))
    print(f"  in {bundle.folder}")
    return set(outcomes.values()) == {"agrees"}


def _describe(info: SubgraphInfo) -> None:
    function = info.source.function if info.source else "?"
    print(f"  graph {info.graph_id}, from {function}: {len(info.regions)} regions, {info.seconds:.1f} s to compile")
    for region in info.regions:
        operators = f"{len(region.nodes):>3} operator{'s' if len(region.nodes) != 1 else ''}"
        print(f"    {region.name:<11} {operators:<15} run by {region.compiler.name}")
    for reason in info.split_reasons:
        print(f"  not run by thunder: {reason.node} ({reason.reason_type.name})")


if __name__ == "__main__":
    sys.exit(main())
