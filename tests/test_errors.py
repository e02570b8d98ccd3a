"""The exceptions: each is the builtin that a reader expects."""

import inspect

import pytest

from thunder_fx import errors

ALL = [cls for _, cls in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("cls", [cls for cls in ALL if not issubclass(cls, Warning)])
def test_each_error_is_ours_and_a_builtin(cls):
    """Code that knows nothing of thunder_fx catches them too; each has a sentence of its own."""
    assert issubclass(cls, errors.ThunderFXError)
    builtins = [base for base in cls.__mro__ if base.__module__ == "builtins"]
    assert cls is errors.ThunderFXError or builtins[0] is not Exception
    assert cls.__doc__.rstrip().endswith(".")


def test_the_warning_is_a_user_warning():
    """It shows by default."""
    assert issubclass(errors.ThunderFXWarning, UserWarning)
