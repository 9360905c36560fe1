#!/usr/bin/env bash
# One expects: what a boxed answer says depends on the version of math-verify alone.
# math-verify 0.9.0 reads \boxed{50\%} as 50 % and as 50 with antlr4-python3-runtime 4.13.2, which pip takes; with 4.9.3, which
# hydra-core 1.3 and omegaconf 2.3 need, it reads nothing and compares the text, so that 0.5 and 50 are wrong.
# latex2sympy2-extended 1.11.0 has a parser for each antlr version; no warning is given.
# An environment with verl, or any other trainer configured by hydra, scores answers otherwise than the same reward elsewhere.
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" math-verify==0.9.0 latex2sympy2-extended==1.11.0 sympy==1.14.0 \
  antlr4-python3-runtime==4.13.2
read_by() {
  "$place/venv/bin/python" -W ignore - 2> /dev/null << 'PYTHON'
from importlib.metadata import version

from math_verify import parse, verify

answer = parse("\\boxed{50\\%}")
right = {wanted: verify(parse(wanted), answer) for wanted in ("0.5", "50")}
print("antlr %s: %s, right for %s" % (version("antlr4-python3-runtime"), answer, right))
PYTHON
}
seen=$(read_by)
"$place/venv/bin/pip" install --quiet hydra-core==1.3.2
seen+=$'\n'$(read_by)
echo "$seen"
[[ $seen == "antlr 4.13.2: [50*(1/100), '50\\\\%'], right for {'0.5': True, '50': True}
antlr 4.9.3: ['50\\\\%'], right for {'0.5': False, '50': False}" ]]
