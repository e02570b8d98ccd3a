"""Which option goes where, and what a wrong one is told."""

import inspect
import pathlib
import re

import pytest
import torch

import thunder_fx
from tests.helpers import TORCH, sine
from thunder_fx import OptionError, OptionValueError, _thunder, options


def test_every_keyword_of_the_installed_torch_compile_is_written_out():
    """An editor completes all of them: the TypedDict has each name that torch.compile takes, but for backend."""
    installed = {
        p.name for p in inspect.signature(torch.compile).parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert installed - {"backend"} <= options.TORCH_COMPILE_NAMES
    assert options.installed_torch_compile_names() == installed - {"backend"}
    newest = {"name", "recompile_limit", "isolate_recompiles", "shapes_spec", "dynamic_shapes"}
    assert options.TORCH_COMPILE_NAMES - newest <= installed


def test_every_keyword_of_the_installed_thunder_jit_is_written_out():
    """Those of the signature, and those that thunder's passes and executors look up by name, read off its sources."""
    import thunder

    assert _thunder.jit_option_names() <= options.THUNDER_NAMES
    looked_up = set()
    call = re.compile(r"(?:get_compile_option|compile_options\.get)\(\s*\"(\w+)\"")
    for path in pathlib.Path(thunder.__path__[0]).rglob("*.py"):
        if "tests" not in path.parts:
            looked_up |= set(call.findall(path.read_text()))
    looked_up -= {"use_cudagraphs", "is_differentiable_outputs"}  # refused by thunder.jit; set for each region by us
    assert len(looked_up) > 15
    assert looked_up <= options.THUNDER_NAMES
    assert options.THUNDER_NAMES - _thunder.jit_option_names() - looked_up <= {"te_fp8_recipe"}  # by a constant's name


def test_each_name_goes_to_its_receiver():
    """torch.compile's to torch.compile, thunder.jit's and its executors' to thunder.jit."""
    routed = options.route("f", {"fullgraph": True, "cache": "no caching", "nv_enable_linear": True})
    assert routed.torch_compile == {"fullgraph": True}
    assert routed.thunder == {"cache": "no caching", "nv_enable_linear": True}


def test_a_name_that_both_take_goes_to_both(monkeypatch):
    """There is none today; should thunder get one, neither side goes without."""
    monkeypatch.setattr(options, "THUNDER_NAMES", options.THUNDER_NAMES | {"dynamic"})
    routed = options.route("f", {"dynamic": True})
    assert routed.torch_compile == {"dynamic": True}
    assert routed.thunder == {"dynamic": True}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("fullgrph", "fullgraph"),
        ("transform", "transforms"),
        ("executor", "executors"),
        ("nv_enable_linea", "nv_enable_linear"),
    ],
)
def test_a_misspelt_name_is_told_the_nearest(wrong, right):
    """A typo is never accepted in silence."""
    with pytest.raises(OptionError, match=rf"thunderfx\(sine\): unknown option '{wrong}' \(did you mean '{right}'\?\)"):
        thunder_fx.thunderfx(sine, **{wrong: True})


def test_a_name_like_no_other_is_told_where_it_could_go():
    """An executor's own option is possible, in words that say so."""
    with pytest.raises(TypeError, match=re.escape("thunder_options={'zzz': ...}")):
        thunder_fx.thunderfx(sine, zzz=1)
    compiled = thunder_fx.thunderfx(sine, thunder_options={"zzz": 1})
    assert thunder_fx.last_backend(compiled).thunder_options == {"zzz": 1}
    torch.testing.assert_close(compiled(torch.ones(3)), sine(torch.ones(3)))


def test_backend_is_refused_with_the_reason():
    """The backend is what thunderfx() is."""
    with pytest.raises(OptionError, match=r"backend= is refused, since ThunderCompiler is the backend.*torch\.compile"):
        thunder_fx.thunderfx(sine, backend="inductor")


@pytest.mark.skipif(TORCH >= (2, 13), reason="this torch takes it")
def test_an_option_of_a_newer_torch_says_so():
    """Not unknown, but not here."""
    with pytest.raises(OptionError, match=r"isolate_recompiles= is torch\.compile's on another release"):
        thunder_fx.thunderfx(sine, isolate_recompiles=False)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"mode": "fast"}, OptionValueError, r"mode= takes one of .*max-autotune.*; found 'fast'"),
        (
            {"options": {"max_autotun": True}},
            OptionValueError,
            r"does not know: 'max_autotun' \(did you mean 'max_autotune'",
        ),
        ({"options": 3}, OptionError, "options= takes a dict"),
        ({"options": {1: 2}}, OptionError, "options by name; found the name 1"),
        ({"mode": []}, OptionError, r"mode= takes str or None; found \[\]"),
        ({"dynamic": "x"}, OptionError, "dynamic= takes bool or None; found 'x'"),
        ({"fullgraph": 3}, OptionError, "fullgraph= takes bool or None"),
        ({"cache": "weird"}, OptionValueError, "cache= does not take 'weird': .*constant values"),
        ({"sharp_edges": "x"}, OptionValueError, "sharp_edges= does not take 'x'"),
        ({"langctx": 3}, OptionValueError, "langctx= does not take 3"),
        ({"debug_options": 3}, OptionError, r"debug_options= takes a thunder\.DebugOptions"),
        ({"thunder_options": {1: 2}}, OptionError, "options by name; found the name 1"),
        (
            {"thunder_options": {"fullgraph": True}},
            OptionError,
            r"fullgraph= is torch\.compile's option",
        ),
        ({"mode": "default", "options": {"max_autotune": True}}, OptionValueError, "mode= or options=, not both"),
        ({"transforms": 3}, OptionError, r"transforms= takes a list \(any iterable\); found 3"),
        (
            {"transforms": [3]},
            OptionError,
            "takes instances of thunder.core.transform_common.Transform; found an object of <class 'int'>",
        ),
        ({"executors": "torch"}, OptionError, r"write executors=\['torch'\]"),
        (
            {"executors": ["nope"]},
            OptionValueError,
            r"executors= takes thunder's executors or their names \(.*torch.*\)",
        ),
        ({"thunder_options": 3}, OptionError, "thunder_options= takes a dict"),
        ({"cache": "x", "thunder_options": {"cache": "y"}}, OptionError, "given twice.*: cache"),
        (
            {"thunder_options": {"is_differentiable_outputs": []}},
            OptionError,
            "is_differentiable_outputs= cannot be set",
        ),
    ],
)
def test_a_wrong_value_is_told_what_was_expected_and_registers_nothing(given, error, message):
    """At the call, and not when the first graph meets it; each is TypeError or ValueError too."""
    before = thunder_fx.compiled_callables()
    with pytest.raises(error, match=message) as caught:
        thunder_fx.thunderfx(sine, **given)
    assert "thunderfx(sine)" in str(caught.value)
    assert isinstance(caught.value, thunder_fx.ThunderFXError)
    assert isinstance(caught.value, (TypeError, ValueError))
    assert thunder_fx.compiled_callables() == before


def test_containers_of_the_user_are_never_modified():
    """Neither by us, nor by torch.compile (it pops from options), nor by thunder.jit (it appends to transforms)."""
    from thunder.transforms import ConstantFolding

    transforms, executors = [ConstantFolding()], ["torch"]
    inductor = {"max_autotune": False, "guard_filter_fn": lambda entries: [True] * len(entries)}
    explicit = {"fusion_type": "dataflow"}
    copies = list(transforms), list(executors), dict(inductor), dict(explicit)
    compiled = thunder_fx.thunderfx(
        sine, transforms=transforms, executors=executors, options=inductor, thunder_options=explicit
    )
    compiled(torch.ones(3))
    compiled(torch.ones(3, 3))
    assert (transforms, executors, inductor, explicit) == copies


@pytest.mark.parametrize("kind", [list, tuple, iter, lambda x: (y for y in x)])
def test_any_iterable_of_transforms_and_executors_works(kind):
    """A generator too, and for each graph, though it can be read only once."""
    from thunder.transforms import ConstantFolding

    compiled = thunder_fx.thunderfx(
        sine, transforms=kind([ConstantFolding()]), executors=kind(["torch"]), dynamic=False
    )
    for n in (2, 3):
        torch.testing.assert_close(compiled(torch.ones(n)), sine(torch.ones(n)))
    assert len(thunder_fx.last_backend(compiled).thunder_options["transforms"]) == 1


def test_inductor_options_are_what_torch_makes_of_them():
    """A mode is torch's set of options; dashes are underscores, as torch.compile has it."""
    import torch._inductor

    assert options.inductor_options("f", None, None) == {}
    assert options.inductor_options("f", "default", None) == {}
    assert options.inductor_options("f", "reduce-overhead", None) == torch._inductor.list_mode_options(
        "reduce-overhead"
    )
    assert options.inductor_options("f", None, {"max-autotune": True}) == {"max_autotune": True}


@pytest.mark.parametrize(
    ("callable_", "words"),
    [
        (sine, "sine"),
        (torch.nn.Linear(2, 2), "a Linear Module"),
        (torch.compile(torch.nn.Linear(2, 2)), "a compiled Linear Module"),
        (3, "3"),
        (list(range(100)), "a list object"),
    ],
)
def test_messages_name_the_callable_shortly(callable_, words):
    """A Module's repr can be pages long."""
    assert options.describe_callable(callable_) == words
