#!/usr/bin/env bash
# One expects: Ctrl-C during `regex.compile` ends the program.
# regex 2026.11.15: a parsed group has a `__del__` in Python. An interrupt that arrives while it is freed
# is raised there, where Python prints and drops it; the program goes on, with status 0. `re` has no such method.
# `regex/_regex_core.py`, `Group.__del__`; shown by a signal sent at its call, which a real one hits now and then.
# transformers' tokenizers compile by it: of 100 interruptions of a program that had loaded one, two to three were lost.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet regex==2026.11.15
"$place/venv/bin/python" - 2> "$place/stderr" << 'PYTHON' || { tail -5 "$place/stderr" >&2; exit 1; }
import importlib
import signal
import sys

SEEN = ["re: no destructor was called", "regex: KeyboardInterrupt was dropped, and the pattern is compiled"]


def compiled(module):
    """Compile a pattern with a group, and press Ctrl-C at the first destructor of the module's parser."""
    called = []

    def press(frame, event, _):
        if event == "call" and frame.f_code.co_name == "__del__" and not called:
            called.append(frame.f_globals["__name__"])
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(press)
    try:
        module.compile("(a)|b")
    except KeyboardInterrupt:
        return "ended by KeyboardInterrupt"
    finally:
        sys.setprofile(None)
    return "KeyboardInterrupt was dropped, and the pattern is compiled" if called else "no destructor was called"


seen = ["%s: %s" % (name, compiled(importlib.import_module(name))) for name in ("re", "regex")]
print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
