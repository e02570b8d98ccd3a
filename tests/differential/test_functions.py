"""One line functions over torch's common operators do what eager does."""

import pytest

from tests.differential.compare import assert_same
from tests.differential.functions import BY_INDUCTOR, FUNCTIONS, inputs
from tests.helpers import needs_cxx
from thunder_fx import thunderfx


@needs_cxx
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in BY_INDUCTOR else n for n in FUNCTIONS]
)
def test_a_function_does_what_eager_does(name):
    """Outputs, gradients, dtypes, strides, aliasing, inputs after the call, and the random stream."""
    function = FUNCTIONS[name]
    assert_same(function, thunderfx(function), inputs())
