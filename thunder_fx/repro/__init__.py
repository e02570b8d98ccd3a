"""Reproducers: scripts that run what was compiled where thunder_fx is not installed.

    bundle.py    save_reproducer(), the folder, the manifest
    script.py    the text of one script, from templates/
    code.py      a graph as the source of a Module
    inputs.py    its inputs as code; domains.py: what values they may take
    values.py    options as code
    runner.py    what every script ends with, word for word
    verify.py    running the scripts

    minify.py    the smallest graph that fails in the same way
    dumps.py     what a failing region or compilation leaves behind, where asked for
    of_tests.py  which compiled callables a failing test is about

They read records. What compiles imports them nowhere but where it has failed, and for thunder.dynamo's name on the
compiler.
"""

# Without torch, for the command line: the newest schema of a manifest that is understood, and a line of every script,
# above which it has what is its own, and below which all are the same.
SCHEMA_VERSION = 1
MARK = "# ---- from here on every reproducer is the same ----"
