"""thunder.dynamo's own tests, run against thunder_fx. They ship in the lightning-thunder wheel."""

import os
import re
import subprocess
import sys

from tests.helpers import needs_cxx


@needs_cxx
def test_thunder_dynamos_own_tests_pass(tmp_path):
    """All that concern what a user sees; those of CUDA are skipped where there is none."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    # The import that makes thunder's importable on newer torch comes before pytest looks for thunder's test file.
    code = (
        f"import sys; sys.path.insert(0, {root!r}); import thunder_fx, pytest; sys.exit(pytest.main(["
        "'-p', 'tests.peer.plugin', '--pyargs', 'thunder.tests.test_dynamo', '-q', '-p', 'no:cacheprovider', "
        "'-p', 'no:randomly', '-p', 'no:xdist', '--tb=short', '--show-capture=no', '-W', 'ignore']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed >= 30, done.stdout[-500:]
