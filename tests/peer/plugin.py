"""A pytest plugin under which thunder.dynamo's own test file tests thunder_fx: `-p tests.peer.plugin`.

What the file imports from thunder.dynamo is replaced before it is imported; the tests of thunder.dynamo's reports and
private helpers, and those of what we decided against, are left out.
"""

import thunder.dynamo
import thunder.dynamo.compiler
import thunder.dynamo.utils

import thunder_fx

BEHAVIOUR = (
    "test_basic",
    "test_cat_no_split",
    "test_checkpoint_memory_use",
    "test_empty_autocast",
    "test_fallback_to_inductor",
    "test_force_skip_lazy_graph_module",
    "test_method_only_registrations",
    "test_no_grad",
    "test_spliter_einops",
    "test_splitter_autocast_ctx",
    "test_splitter_autograd_function",
    "test_splitter_with_symint_node",
    "test_thundercompiler_optim_step",
    "test_thunderfx",
    "test_where_nonzero",
)


class Seen:
    """What thunderfx() returns, with the attributes by which the tests reach the records."""

    def __init__(self, compiled):
        self._func, self._backend = compiled, thunder_fx.last_backend(compiled)

    def __call__(self, *args, **kwargs):
        return self._func(*args, **kwargs)

    @property
    def last_traces(self):
        return thunder_fx.last_traces(self._func)

    @property
    def last_backward_traces(self):
        return thunder_fx.last_backward_traces(self._func)


def thunderfx(fn, /, **options):
    return Seen(thunder_fx.thunderfx(fn, **options))


compiler_of_ours, type_of_ours = thunder_fx.ThunderCompiler, thunder_fx.CompilerType
for module in (thunder.dynamo, thunder.dynamo.compiler):
    module.thunderfx = thunderfx
    module.ThunderCompiler = compiler_of_ours
thunder.dynamo.utils.CompilerType = type_of_ours


def pytest_collection_modifyitems(config, items):
    keep = [item for item in items if item.originalname.startswith(BEHAVIOUR)]
    config.hook.pytest_deselected(items=[item for item in items if item not in keep])
    items[:] = keep
