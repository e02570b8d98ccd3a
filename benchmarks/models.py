"""What is compiled: Modules with made-up weights, and their inputs."""

from __future__ import annotations

import pathlib
import sys
from typing import Any


def llama(layers: int) -> tuple[Any, dict[str, Any]]:
    """A Llama for the CPU: hidden 256, 4 heads, 32 tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=1000,
        use_cache=False,
    )
    ids = torch.randint(0, 1000, (2, 32))
    return LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}


def zoo(name: str) -> tuple[Any, dict[str, Any]]:
    """The models that the tests compare with eager."""
    import torch

    sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
    from tests.models.test_models import model_and_inputs

    torch.manual_seed(0)
    return model_and_inputs(name)


ZOO = ("llama", "bert", "llama_no_cache", "gpt2", "t5", "vit", "mistral")


def gigabyte() -> tuple[Any, Any]:
    """Sixteen linear layers, a gigabyte of weights."""
    import torch

    layers = [torch.nn.Linear(4096, 4096, bias=False) for _ in range(16)]
    return torch.nn.Sequential(*layers), torch.rand(1, 4096)


def tiny(x: Any) -> Any:
    import torch

    return torch.sin(x) + 1


def steady(kind: str) -> tuple[Any, Any]:
    """A function or Module whose calls are short, and its input."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if kind == "tiny function":
        return tiny, torch.rand(8)
    if kind == "MLP":
        return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)), torch.rand(16, 64)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.rand(2, 16, 64)
