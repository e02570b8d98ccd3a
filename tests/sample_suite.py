"""A suite that fails on purpose: tests/test_pytest_plugin.py runs a copy of it, and looks at what it leaves behind."""

import sys
import unittest

import pytest
import torch

import thunder_fx
from thunder_fx import thunderfx


def sine(x):
    return x.sin() + 1


def cosine(x):
    return x.cos() + 1


@pytest.fixture(scope="module")
def shared():
    compiled = thunderfx(cosine)
    compiled(torch.ones(3))
    return {"inside": [compiled]}


def test_passes(shared):
    assert shared


def test_passes_too(shared):
    shared["inside"][0](torch.ones(3))


def test_fails_the_third_time(shared):
    assert shared["inside"][0](torch.ones(3)).sum() == 0


def test_compiles_and_fails():
    compiled = thunderfx(sine)
    compiled(torch.ones(3))
    assert compiled(torch.ones(4)).sum() == 0


def test_fails_without_having_compiled_anything():
    assert sine(torch.ones(3)).sum() == 0


@pytest.mark.parametrize("size", [2, 3])
def test_with_parameters(size):
    backend = thunder_fx.ThunderCompiler()
    torch.compile(sine, backend=backend)(torch.ones(size))
    raise AssertionError(size)


@pytest.fixture
def failing_setup():
    thunderfx(sine)(torch.ones(5))
    raise RuntimeError("in setup")


def test_whose_setup_fails(failing_setup):
    pass


@pytest.fixture
def failing_teardown():
    yield
    thunderfx(sine)(torch.ones(6))
    raise RuntimeError("in teardown")


def test_whose_teardown_fails(failing_teardown):
    pass


@pytest.mark.xfail
def test_expected_to_fail():
    thunderfx(lambda x: x.sin())(torch.ones(7))
    raise AssertionError


def test_skipped():
    thunderfx(lambda x: x.cos())(torch.ones(8))
    pytest.skip("not today")


def test_expects_an_exception():
    compiled = thunderfx(lambda x, i: x[i])
    with pytest.raises(IndexError):
        compiled(torch.ones(2), torch.tensor([9]))


class TestOfUnittest(unittest.TestCase):
    def test_fails(self):
        thunderfx(cosine)(torch.ones(9))
        self.fail("as unittest does")


by_module = thunderfx(cosine)
by_module(torch.ones(10))


def test_names_a_global():
    assert by_module is None


def test_long_name_of_æøå_and_more_than_eighty_characters_which_no_file_system_should_have_to_take_as_it_is():
    thunderfx(sine)(torch.ones(11))
    raise AssertionError(sys.platform)
