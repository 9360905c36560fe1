#!/usr/bin/env bash
# One expects: 1e5 is read as 100,000, and an answer of 50 % is either 50 or 0.5.
# math-verify 0.9.0, the usual rule for answers in mathematics: 1e5 is read as 1, and between dollar signs as five times
# Euler's number, so that the right answer is wrong. "50%" is right where 0.5 was asked for, and where 50 was.
# `parse` by latex2sympy2-extended 1.11.0; in verl as a reward through `math_verify`, in TRL's `accuracy_reward`.
# A policy that answers in scientific notation is punished for it.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet math-verify==0.9.0 latex2sympy2-extended==1.11.0 sympy==1.14.0
"$place/venv/bin/python" -W ignore - << 'PYTHON'
import sys

from math_verify import parse, verify

SEEN = [
    "1e5 is read as 1; right where 100000 is asked for: False",
    "$1e5$ is read as 5*E; right where 100000 is asked for: False",
    "$10^5$ is read as 100000; right where 100000 is asked for: True",
    "50%: right where 50 is asked for: True, where 0.5 is: True",
]
seen = []
for answer in ("1e5", "$1e5$", "$10^5$"):
    read = parse(answer)
    right = verify(parse("$100000$"), read)
    seen.append("%s is read as %s; right where 100000 is asked for: %s" % (answer, read[0].doit(), right))
percent = parse("$50\\%$")
right = [verify(parse(gold), percent) for gold in ("$50$", "$0.5$")]
seen.append("50%%: right where 50 is asked for: %s, where 0.5 is: %s" % (*right,))
print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
