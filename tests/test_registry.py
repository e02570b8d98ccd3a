"""The side table: which callable belongs to which ThunderCompiler, and for how long."""

import copy
import functools
import gc
import pickle
import sys
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn

import thunder_fx
from tests.helpers import Block, sine
from thunder_fx import (
    NotCompiledError,
    RegistrationError,
    ThunderCompiler,
    compiled_callables,
    forget,
    get_subgraph_info,
    last_backend,
    register,
    thunderfx,
)


@pytest.fixture(autouse=True)
def empty_table():
    gc.collect()


def test_a_compiled_callable_is_known_at_once():
    """Before its first call, and as long as it lives."""
    compiled = thunderfx(sine)
    assert compiled in compiled_callables()
    assert isinstance(last_backend(compiled), ThunderCompiler)
    number = len(compiled_callables())
    del compiled
    gc.collect()
    assert len(compiled_callables()) == number - 1


@pytest.mark.parametrize("make", [lambda: thunderfx(lambda x: x.sin() + 1), lambda: thunderfx(Block())])
def test_dropping_frees_everything(make):
    """Callable, ThunderCompiler, info, graph and regions go at once, with no reset, after forward and backward."""
    compiled = make()
    compiled(torch.randn(2, 8, requires_grad=True)).sum().backward()
    info = get_subgraph_info(compiled)[0]
    graphs = info.original_graph_module, info.original_split_graph_module, info.split_graph_module
    watched = [compiled, last_backend(compiled), info, *graphs, info.regions[0], *info.split_graph_module.children()]
    references = [weakref.ref(o) for o in watched]
    del compiled, info, graphs, watched
    gc.collect()
    assert [r() for r in references] == [None] * len(references)


def test_dropping_frees_after_errors_too():
    """An exception from a region, kept by nobody, keeps nothing."""

    def fails(x):
        return torch.ops.thunder_fx_tests.fails(x.sin())

    with torch.library._scoped_library("thunder_fx_tests", "FRAGMENT") as library:
        library.define("fails(Tensor x) -> Tensor")
        library.impl("fails", lambda x: torch.empty_like(x), "Meta")
        library.impl("fails", _boom, "CPU")
        compiled = thunderfx(fails)
        with pytest.raises(RuntimeError, match="boom"):
            compiled(torch.ones(3))
        references = [weakref.ref(last_backend(compiled)), weakref.ref(get_subgraph_info(compiled)[0])]
        del compiled
        gc.collect()
        assert [r() for r in references] == [None, None]


def _boom(x):
    raise RuntimeError("boom")


def test_compiled_code_outlives_its_record():
    """A kept bound forward goes on compiling, for new shapes too; nothing is recorded any more."""
    block = Block()
    compiled = thunderfx(block)
    compiled(torch.randn(2, 8))
    forward = compiled.forward
    del compiled
    gc.collect()
    for n in (2, 3, 4):
        x = torch.randn(n, 8)
        torch.testing.assert_close(forward(x), block(x))


def test_the_cache_entries_of_a_dropped_callable_are_spent():
    """Dynamo's entry stays and counts, but holds no compiled code: a fresh callable compiles anew."""
    first = thunderfx(sine)
    first(torch.ones(3))
    del first
    gc.collect()
    entries = torch._dynamo.eval_frame._debug_get_cache_entry_list(sine.__code__)
    assert [type(e.guard_manager).__name__ for e in entries] == ["DeletedGuardManagerWrapper"]
    second = thunderfx(sine)
    torch.testing.assert_close(second(torch.ones(3)), sine(torch.ones(3)))
    assert len(get_subgraph_info(second)) == 1


def test_in_place_compiled_modules_are_found():
    """module.compile(backend=...): the Module itself answers, with exactly the ThunderCompiler that was given."""
    model, backend = Block(), ThunderCompiler(transforms=[])
    assert model.compile(backend=backend) is None
    model(torch.randn(2, 8))
    assert last_backend(model) is backend
    assert len(get_subgraph_info(model)) == 1
    assert get_subgraph_info(model) == backend.subgraph_infos


def test_a_compiler_given_to_torch_compile_is_found():
    """Also through a wrapper that functools.wraps made."""
    backend = ThunderCompiler()
    compiled = torch.compile(sine, backend=backend)

    @functools.wraps(compiled)
    def wrapper(*args):
        return compiled(*args)

    wrapper(torch.ones(3))
    assert last_backend(compiled) is backend
    assert last_backend(wrapper) is backend


def test_a_shared_backend_answers_with_all_graphs():
    """Each with its source."""
    backend = ThunderCompiler()
    first = torch.compile(sine, backend=backend)
    second = torch.compile(Block(), backend=backend)
    first(torch.ones(3)), second(torch.ones(2, 8))
    assert [i.source.function for i in get_subgraph_info(first)] == ["sine", "forward"]
    assert get_subgraph_info(second) == get_subgraph_info(first)


def test_modules_that_compare_equal_are_kept_apart():
    """A user's __eq__ without __hash__ neither breaks a lookup nor mixes two Modules up."""

    class Twin(Block):
        def __eq__(self, other):
            return isinstance(other, Twin)

        __hash__ = None

    a, b = Twin(), Twin()
    backends = ThunderCompiler(), ThunderCompiler()
    a.compile(backend=backends[0])
    b.compile(backend=backends[1])
    a(torch.randn(2, 8)), b(torch.randn(2, 8))
    assert (last_backend(a), last_backend(b)) == backends
    c, d = thunderfx(Twin()), thunderfx(Twin())
    assert last_backend(c) is not last_backend(d)
    with pytest.raises(NotCompiledError):
        last_backend(Twin())


@pytest.mark.parametrize("called_first", [True, False])
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"]
)
def test_a_copy_has_its_own_record(duplicate, called_first):
    """A copy compiles for itself, is known, and lives on when the original is gone; with it goes its record."""
    if duplicate is not copy.deepcopy and not _pickles_compiled_modules():
        pytest.skip("plain torch.compile's result does not pickle on this torch")
    original = thunderfx(PicklableBlock())
    if called_first:
        original(torch.randn(2, 8))
    twin = duplicate(original)
    twin(torch.randn(3, 8))
    assert last_backend(twin) is not last_backend(original)
    assert [i.regions[0].example_inputs[0].shape for i in get_subgraph_info(twin)] == [(3, 8)]
    del original
    gc.collect()
    x = torch.randn(2, 5, 8)  # of another rank: a size alone could be the dynamic one of the first graph
    torch.testing.assert_close(twin(x), torch.relu(twin.linear(x)) + 1)
    assert len(get_subgraph_info(twin)) == 2
    reference = weakref.ref(last_backend(twin))
    del twin
    gc.collect()
    assert reference() is None


def test_a_copy_that_nobody_asked_about_leaves_nothing():
    """Its record is found through torch.compile's own object, so it goes with the copy."""
    before = {id(c) for c in thunder_fx.compiler.live_compilers()}
    twin = copy.deepcopy(thunderfx(Block()))
    twin(torch.randn(3, 8))
    (compiler,) = [c for c in thunder_fx.compiler.live_compilers() if id(c) not in before and c.subgraph_infos]
    reference = weakref.ref(compiler)
    del twin, compiler
    gc.collect()
    assert reference() is None


class PicklableBlock(Block):
    pass


def _pickles_compiled_modules():
    try:
        pickle.loads(pickle.dumps(torch.compile(PicklableBlock(), backend=_a_backend)))
    except Exception:
        return False
    return True


def _a_backend(gm, inputs):
    return gm


def test_register_and_forget():
    """A wrapper of the user's own is known after register(), and unknown after forget(); the compiled one stays."""
    backend = ThunderCompiler()
    compiled = torch.compile(sine, backend=backend)

    def serve(x):
        return compiled(x)

    serve(torch.ones(2))
    with pytest.raises(NotCompiledError):
        last_backend(serve)
    register(serve, backend)
    assert last_backend(serve) is backend
    forget(serve)
    with pytest.raises(NotCompiledError, match="was forgotten by forget"):
        last_backend(serve)
    assert last_backend(compiled) is backend
    register(serve, backend)
    assert last_backend(serve) is backend


def test_forget_frees_at_once_and_the_callable_goes_on():
    """Records are gone without dropping the callable; later graphs are not recorded; lookups raise."""

    def cosine(x):
        return x.cos() + 1

    compiled = thunderfx(cosine)
    compiled(torch.ones(3))
    references = [weakref.ref(last_backend(compiled)), weakref.ref(get_subgraph_info(compiled)[0])]
    forget(compiled)
    gc.collect()
    assert [r() for r in references] == [None, None]
    for n in (3, 4):
        torch.testing.assert_close(compiled(torch.ones(n)), cosine(torch.ones(n)))
    for lookup in (last_backend, get_subgraph_info, forget):
        with pytest.raises(NotCompiledError, match="forgotten"):
            lookup(compiled)
    assert thunderfx(cosine) is not None
    with pytest.raises(NotCompiledError, match="was not compiled by thunder_fx"):
        last_backend(cosine)


def test_forget_keeps_a_held_backend_from_recording():
    """Also where somebody holds the ThunderCompiler: what was forgotten stays so."""
    compiled = thunderfx(sine)
    compiled(torch.ones(3))
    backend = last_backend(compiled)
    forget(compiled)
    compiled(torch.ones(3, 3))
    assert backend.subgraph_infos == []
    with pytest.raises(NotCompiledError):
        last_backend(compiled)


def test_forget_empties_what_was_compiled_in_place():
    """Dynamo keeps the ThunderCompiler; its infos go."""
    model, backend = Block(), ThunderCompiler()
    model.compile(backend=backend)
    model(torch.randn(2, 8))
    reference = weakref.ref(get_subgraph_info(model)[0])
    forget(model)
    gc.collect()
    assert backend.subgraph_infos == []
    assert reference() is None


STRANGERS = [
    (len, "len"),
    (lambda x: x, "<lambda>"),
    (nn.Linear(2, 2), "a Linear Module"),
    (torch.compile(lambda x: x, backend="eager"), "<lambda>"),
    (3, "expected a compiled callable, found 3"),
    (None, "found None"),
    (sine, "sine"),
]


@pytest.mark.parametrize("lookup", [last_backend, get_subgraph_info, thunder_fx.last_traces, forget])
@pytest.mark.parametrize(("stranger", "words"), STRANGERS)
def test_an_unknown_callable_is_told_what_to_ask_for(lookup, stranger, words):
    """A TypeError, as thunder.last_traces raises, that names the callable and thunderfx()."""
    with pytest.raises(NotCompiledError, match=words) as caught:
        lookup(stranger)
    assert "thunderfx" in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_a_module_with_compiled_children_names_them():
    """So that a person asks for those."""
    model = nn.Sequential(thunderfx(nn.Linear(2, 2)), nn.ReLU(), Block())
    model[2].compile(backend=ThunderCompiler())
    with pytest.raises(NotCompiledError, match="parts of it are: 0, 2; ask for those"):
        last_backend(model)


@pytest.mark.parametrize(
    ("fn", "backend", "message"),
    [
        (sine, "inductor", "expected a thunder_fx.ThunderCompiler, found 'inductor'"),
        (3, ThunderCompiler(), "expected a function or a compiled Module, found an object of <class 'int'>"),
        ([], ThunderCompiler(), "compares by value"),
        (sys.intern, ThunderCompiler(), "takes no weak reference"),
    ],
)
def test_what_cannot_be_registered_is_refused(fn, backend, message):
    """And the table is as before."""
    before = compiled_callables()
    with pytest.raises(RegistrationError, match=message):
        register(fn, backend)
    assert compiled_callables() == before


class Raises:
    """An object whose every own word raises."""

    def __repr__(self):
        raise RuntimeError("repr")

    def __getattr__(self, name):
        raise RuntimeError(name)

    @property
    def __class__(self):
        raise RuntimeError("__class__")

    @property
    def __dict__(self):
        raise RuntimeError("__dict__")

    def __call__(self, x):
        return x


def test_objects_whose_attributes_raise_get_their_message_all_the_same():
    """A lookup's error is the lookup's, and not that of the object asked about."""
    for lookup in (last_backend, get_subgraph_info, forget):
        with pytest.raises(NotCompiledError, match="a Raises object"):
            lookup(Raises())
    with pytest.raises(RegistrationError):
        register(int, ThunderCompiler())


def test_a_backend_that_was_looked_up_by_itself_is_not_kept():
    """The table never holds a backend as the value of its own key."""
    backend = ThunderCompiler()
    compiled = torch.compile(sine, backend=backend)
    compiled(torch.ones(3))
    assert get_subgraph_info(backend) == get_subgraph_info(compiled)
    reference = weakref.ref(backend)
    del backend, compiled
    torch._dynamo.reset()
    gc.collect()
    assert reference() is None


def test_forgetting_a_module_compiled_in_place_empties_and_goes_on():
    """Its ThunderCompiler may serve others: it records what comes next, and can be emptied again."""
    model, backend = Block(), ThunderCompiler()
    model.compile(backend=backend, dynamic=False)
    for n in (2, 3):
        model(torch.randn(n, 8))
        assert len(get_subgraph_info(model)) == 1
        forget(model)
        with pytest.warns(thunder_fx.ThunderFXWarning, match=r"no new graph since forget\(\)"):
            assert get_subgraph_info(model) == []


def test_a_shallow_copy_is_known_after_the_original_is_gone():
    """It runs by the same torch.compile context; its record begins when it is first asked for."""
    original = thunderfx(Block())
    original(torch.randn(2, 8))
    twin = copy.copy(original)
    del original
    gc.collect()
    assert isinstance(last_backend(twin), ThunderCompiler)
    twin(torch.randn(2, 3, 8))
    assert len(get_subgraph_info(twin)) == 1


def test_dropping_frees_the_graphs_of_a_function_that_breaks():
    """Dynamo leaves a graph's callable in the function's globals, even after a reset; what it held is freed."""

    def breaks(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y * 2

    compiled = thunderfx(breaks)
    compiled(torch.ones(3))
    references = [weakref.ref(i.split_graph_module) for i in get_subgraph_info(compiled)]
    assert len(references) == 2
    del compiled
    gc.collect()
    assert [r() for r in references] == [None, None]


def test_live_compilers_can_be_listed_while_others_are_made():
    """A diagnosis looks through all of them."""
    stop, errors = threading.Event(), []

    def make():
        while not stop.is_set():
            ThunderCompiler()

    def look():
        try:
            for _ in range(2000):
                thunder_fx.compiler.live_compilers()
        except Exception as error:
            errors.append(error)

    maker, looker = threading.Thread(target=make), threading.Thread(target=look)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        maker.start(), looker.start()
        looker.join(timeout=60)
    finally:
        stop.set()
        maker.join(timeout=60)
        sys.setswitchinterval(interval)
    assert errors == []


def test_many_threads_compile_look_up_and_forget():
    """No lost entry, no wrong one, no deadlock."""
    errors = []

    def work(number):
        try:
            for step in range(3):
                scale = number * 10 + step

                def scaled(x, scale=scale):
                    return x.sin() * scale

                compiled = thunderfx(scaled)
                torch.testing.assert_close(compiled(torch.ones(2)), scaled(torch.ones(2)))
                (info,) = get_subgraph_info(compiled)
                assert info.source.function == "scaled"
                assert compiled in compiled_callables()
                forget(compiled)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", thunder_fx.ThunderFXWarning
        )  # 24 times the same code: older torch nears its limit
        with torch._dynamo.config.patch(recompile_limit=64):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []
