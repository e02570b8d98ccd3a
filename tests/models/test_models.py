"""Small, randomly initialised models of transformers: loss and gradients equal eager's, in training and in evaluation.

Each in a process of its own: transformers wraps forward, so that all models share a code object and its limits.
"""

import dataclasses
import pathlib
import sys

import pytest
import torch

from tests.helpers import needs_cxx, run_python

IN_CI = ["llama", "bert"]
SLOW = ["llama_no_cache", "gpt2", "t5", "vit", "mistral"]

SMALL = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def model_and_inputs(name):
    import transformers as t

    ids = torch.randint(3, 128, (2, 16), generator=torch.Generator().manual_seed(0))
    text = {"input_ids": ids, "labels": ids}
    if name in ("llama", "llama_no_cache"):
        config = t.LlamaConfig(**SMALL, num_key_value_heads=2, use_cache=name == "llama")
        return t.LlamaForCausalLM(config), text
    if name == "mistral":
        return t.MistralForCausalLM(t.MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=8)), text
    if name == "gpt2":
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=128, n_embd=32, n_layer=2, n_head=4, **dropout)), text
    if name == "bert":
        model = t.BertForMaskedLM(t.BertConfig(**SMALL, **NO_DROPOUT))
        return model, {**text, "attention_mask": torch.ones_like(ids)}
    if name == "t5":
        sizes = {"vocab_size": 128, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
        config = t.T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0)
        return t.T5ForConditionalGeneration(config), text
    config = t.ViTConfig(**{**SMALL, "vocab_size": None}, image_size=32, patch_size=8, num_labels=5, **NO_DROPOUT)
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return t.ViTForImageClassification(config), {"pixel_values": pixels, "labels": torch.tensor([0, 3])}


def compare(name):
    """Run in the child process."""
    import thunder_fx
    from thunder_fx.graph import tracing

    torch.manual_seed(0)
    model, inputs = model_and_inputs(name)
    model.train()
    model(**inputs).loss.backward()
    want = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    loss = model(**inputs).loss
    model.zero_grad()
    compiled = thunder_fx.thunderfx(model)
    got = compiled(**inputs).loss
    got.backward()
    torch.testing.assert_close(got, loss, rtol=1e-5, atol=1e-5)
    for key, parameter in model.named_parameters():
        if key in want:
            # Some gradients are zero but for rounding: a bias in front of a norm.
            tolerance = max(1e-3 * want[key].abs().max().item(), 1e-6)
            torch.testing.assert_close(parameter.grad, want[key], rtol=1e-3, atol=tolerance)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(**inputs).loss, model(**inputs).loss, rtol=1e-5, atol=1e-5)
    regions = [[r.compiler.name for r in i.regions] for i in thunder_fx.get_subgraph_info(compiled)]
    assert regions
    assert all(names == ["THUNDER"] for names in regions), regions
    # thunder's bytecode interpreter is the exception, and none of these models needs it.
    assert tracing.interpreter_uses == 0


def reproduce(name, folder):
    """Run in the child process: a bundle of a training step and an evaluation, moved, and run from elsewhere."""
    import thunder_fx

    torch.manual_seed(0)
    model, inputs = model_and_inputs(name)
    compiled = thunder_fx.thunderfx(model)
    compiled(**inputs).loss.backward()
    model.eval()
    with torch.no_grad():
        compiled(**inputs)
    bundle = thunder_fx.save_reproducer(compiled, pathlib.Path(folder) / "here")
    moved = bundle.folder.rename(pathlib.Path(folder) / "moved")
    outcomes = dataclasses.replace(bundle, folder=moved).verify()
    assert len(outcomes) == len(bundle.scripts)
    assert set(outcomes.values()) == {"agrees"}, (outcomes, bundle.manifest["files"])


def in_a_process_of_its_own(call):
    run_python(f"import sys; sys.path[:0] = {sys.path!r}; from tests.models import test_models; test_models.{call}")


EACH = pytest.mark.parametrize("name", [*IN_CI, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])


@needs_cxx
@EACH
def test_numbers_are_eagers(name):
    """One forward and backward in train mode, one forward in eval mode; each graph is one region of thunder's."""
    in_a_process_of_its_own(f"compare({name!r})")


@needs_cxx
@EACH
def test_every_script_of_its_bundle_agrees(name, tmp_path):
    """From another folder, after the bundle was moved."""
    in_a_process_of_its_own(f"reproduce({name!r}, {str(tmp_path)!r})")
