#!/usr/bin/env bash
# One expects: a task's own verifier gives a wrong answer less than a right one, and never more than 1.
# reasoning-gym 0.1.25: `game_of_life_halting` gives any text 1 (`bool("False")` is true), `puzzle24` any four numbers
# that make 24, also others than the given ones, `gsm_symbolic` the negative of the answer (no word boundary stands before a
# minus sign), and `spell_backward` nine letters and two more 1.0000000000000002. `score_answer` of each task.
# With these rewards a policy has the full score and learns nothing of the task.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet reasoning-gym==0.1.25
"$place/venv/bin/python" -W ignore - << 'PYTHON'
import sys

import reasoning_gym

SEEN = [
    "game_of_life_halting, 'I do not know': 1.0, 1.0, 1.0",
    "puzzle24, '6*4*1*1' where 8, 5, 10, 6 or other numbers are given: 1.0, 1.0, 1.0",
    "gsm_symbolic, the negative of the answer: 1.0, 1.0, 1.0",
    "spell_backward, the answer and two letters: 1.0000000000000002, 1.0000000000000002, 1.0000000000000002",
]
TRIED = {
    "game_of_life_halting": ("'I do not know'", lambda answer: "I do not know"),
    "puzzle24": ("'6*4*1*1' where 8, 5, 10, 6 or other numbers are given", lambda answer: "6*4*1*1"),
    "gsm_symbolic": ("the negative of the answer", lambda answer: "-" + answer),
    "spell_backward": ("the answer and two letters", lambda answer: answer + "xx"),
}
OPTIONS = {"spell_backward": {"min_word_len": 9, "max_word_len": 9}}
seen = []
for task, (words, wrong) in TRIED.items():
    data = reasoning_gym.create_dataset(task, size=3, seed=1, **OPTIONS.get(task, {}))
    scores = [data.score_answer(wrong(entry["answer"]), entry) for entry in data]
    seen.append("%s, %s: %s" % (task, words, ", ".join(map(str, scores))))
print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
