"""torch.utils.checkpoint in a captured graph that runs eager."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.checkpoint

CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


def to_eager_form(graph_module: torch.fx.GraphModule) -> None:
    """Have a graph's checkpoints run as those of an eager program do, in place; its bodies must not be shared.

    The operator that a graph has instead leaves random numbers to Inductor: run eager (torch 2.9 to 2.15), its
    backward draws other ones than its forward did.
    """
    for child in graph_module.children():
        if isinstance(child, torch.fx.GraphModule):
            to_eager_form(child)
    checkpoints = graph_module.graph.find_nodes(op="call_function", target=CHECKPOINT)
    for node in checkpoints:
        node.target = checkpointed
    if checkpoints:
        graph_module.recompile()


def checkpointed(body: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """What the operator stands for."""
    options = {**kwargs, "use_reentrant": False}
    if "_checkpoint_context_fn" in body.meta:
        options["context_fn"] = body.meta["_checkpoint_context_fn"]
    return torch.utils.checkpoint.checkpoint(body, *args, **options)
