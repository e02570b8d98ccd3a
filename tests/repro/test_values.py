"""Objects as code: what comes back is what went in, or the writer says why not."""

import collections
import enum
import functools
import os
import re
import shlex
import subprocess
import sys

import pytest
import thunder
import torch
from thunder.core.transform_common import Transform
from thunder.transforms import ConstantFolding

from thunder_fx.repro import runner
from thunder_fx.repro.values import Inexpressible, Writer

FACTOR = 3


class Colour(enum.Enum):
    RED = 1


class Stateful(Transform):
    """A transform with a constructor whose arguments are its state."""

    def __init__(self, factor, names=()):
        self.factor = factor
        self.names = names


class Doubling(Transform):
    """Its attribute has its argument's name, and another value."""

    def __init__(self, factor):
        self.factor = factor * 2


class Number(int):
    """More than its attributes."""


class Accumulating(Transform):
    """Its state is more than its constructor's arguments."""

    def __init__(self, factor):
        self.factor = factor
        self.seen = [factor]

    def double(self):
        return helper(self.factor) * FACTOR


def helper(x):
    return x * 2


def evaluated(value):
    """The value of the code that a writer gives, in a namespace that has only what the writer says, and its text."""
    writer = Writer()
    expression = writer.expression(value)
    text = "\n".join(["import torch", *writer.imports, *writer.definitions.values()])
    names = {"restored": runner.restored, "__name__": "elsewhere"}
    exec(text, names)
    return eval(expression, names), text + "\n" + expression


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2.5,
        float("inf"),
        complex(1, float("-inf")),
        "a 'quoted' \\ string",
        b"bytes",
        ...,
        [1, (2,), {"a": {3}}, frozenset()],
        slice(1, None, 2),
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.device("cpu"),
        torch.strided,
        torch.channels_last,
        len,
        torch.sin,
        torch.nn.functional.gelu,
        subprocess.PIPE,
        subprocess,
        ConstantFolding,
        thunder.pytorch_executor,
        re.IGNORECASE | re.DOTALL,
        [os.path.join, shlex.join],
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value).partition(" at 0x")[0],
)
def test_plain_values_and_what_can_be_imported(value):
    """Literals, and names of installed packages."""
    assert evaluated(value)[0] == value


def test_nan_and_partials():
    """What does not equal itself, and what has arguments."""
    assert evaluated(float("nan"))[0] != evaluated(float("nan"))[0]
    made = evaluated(functools.partial(torch.full, (2,), fill_value=1.0))[0]
    assert (made.func, made.args, made.keywords) == (torch.full, ((2,),), {"fill_value": 1.0})


def test_what_is_not_installed_is_embedded():
    """The source of a class, of the functions that it calls, and the values that it reads."""
    made, text = evaluated(Doubling(2))
    assert vars(made) == {"factor": 4}
    made, text = evaluated(Stateful(2, names=("a",)))
    assert (type(made).__name__, vars(made)) == ("Stateful", {"factor": 2, "names": ("a",)})
    assert "tests" not in text
    made, text = evaluated(Accumulating(2))
    assert (vars(made), made.double()) == ({"factor": 2, "seen": [2]}, 12)
    assert "FACTOR = 3" in text
    assert evaluated(Colour.RED)[0].value == 1


def test_a_local_class_that_needs_nothing_around_it():
    """Classes of a function, and closures over plain values."""
    offset = 5

    class Local(Transform):
        def shift(self, x):
            return x + offset

    assert evaluated(Local())[0].shift(1) == 6


def test_what_has_no_code_says_so():
    """Never a repr that would not be read back."""
    queue = __import__("queue").SimpleQueue()
    cyclic = []
    cyclic.append(cyclic)
    for value, why in (
        (lambda x: x, "<lambda>, which has no name"),
        (Stateful(lambda x: x), "whose attribute factor is"),
        (queue, "which has no state that could be written"),
        (cyclic, "an object that contains itself"),
        (torch.ones(2), "an object of torch.Tensor, which has no state"),
        (torch.nn.Parameter(torch.ones(2)), "which has no state that could be written"),
        (Number(3), "Number, which has no state that could be written"),
        (collections.defaultdict(list), "an object of collections.defaultdict, which has no state"),
        (thunder.extend.OperatorExecutor("mine"), "the executor 'mine', which no importable module keeps"),
    ):
        with pytest.raises(Inexpressible, match=why):
            Writer().expression(value)


def test_two_objects_of_one_name_are_told_apart():
    """The second would silently be the first."""

    def made(factor):
        def twice(x):
            return x * factor

        return twice

    with pytest.raises(Inexpressible, match="two different objects of the name"):
        Writer().expression([made(2), made(3)])


def test_an_executor_of_an_importable_module_is_required(tmp_path, monkeypatch):
    """The script imports it, and says what to put on PYTHONPATH where that fails."""
    (tmp_path / "my_executors.py").write_text("import thunder\nmine = thunder.extend.OperatorExecutor('mine')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_executors

    writer = Writer()
    assert writer.expression([my_executors.mine]) == "[mine]"
    ((line, message),) = writer.requirements.items()
    assert line == "from my_executors import mine"
    assert "put my_executors on PYTHONPATH" in message
    assert str(tmp_path) in message
    sys.modules.pop("my_executors")
