"""Test how the tests' own processes end."""

import processes
import pytest
from processes import Python

DIES = "import os; print('the last line', flush=True); os.kill(os.getpid(), 4)"


@pytest.mark.parametrize("run", [processes.run_forked, processes.run_interpreter])
def test_a_process_that_dies_of_a_signal_fails_its_test_with_the_signals_name(run: Python) -> None:
    with pytest.raises(AssertionError, match=r"(?s)SIGILL \(Illegal instruction\).*the last line"):
        run(DIES)
