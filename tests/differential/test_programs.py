"""Random programs do what eager does."""

import pytest

from tests.differential.compare import assert_same
from tests.differential.programs import compiled_from, inputs, program
from tests.helpers import needs_cxx
from thunder_fx import thunderfx


@needs_cxx
@pytest.mark.parametrize("seed", range(200))
def test_a_random_program_does_what_eager_does(seed):
    """In-place writes, views and mixed dtypes, together as nobody would write them."""
    source = program(seed)
    print(source)
    assert_same(compiled_from(source), thunderfx(compiled_from(source)), inputs())
