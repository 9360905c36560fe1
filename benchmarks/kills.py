"""Kill each kind of process with SIGKILL at a random moment of a training, and resume the training.

python benchmarks/kills.py [--kinds driver WorkerDict …] [--seed 1] [--out outputs/kills] [verl overrides]

Trains the embedded task on the CPU platform with two ranks and twelve short steps, with a checkpoint after
each. The signal comes 0 to 10 seconds after the first step was logged. Then the same training is started
again and has to reach its last step. Processes that the killed run left are counted, and the task's cache is
compared file by file.
"""

import random
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from common import FORKS_WORKERS, kind, parser

from grpo_verl_ext.runs.child_process import ProcessFailedError, marked
from grpo_verl_ext.runs.verl_run import Metrics, VerlRun
from grpo_verl_ext.utils.files import cache_root

KINDS = (
    *("driver", "TaskRunnerV1", "WorkerDict", "AgentLoopWorkerTQ", "RewardLoopWorker"),
    *("vLLMHttpServer", "EngineCore", "TransferQueueController", "SimpleStorageUnit", FORKS_WORKERS),
)
STEPS = 12


@dataclass
class Kill:
    """Sends the signal once, ``delay`` seconds after the first step; after ``patience`` more a run hangs."""

    run: VerlRun
    kind: str
    delay: float
    patience: float
    first_step: float | None = None
    sent: float | None = None

    def look(self, metrics: Metrics) -> None:
        now = time.monotonic()
        if self.sent is not None:
            if now > self.sent + self.patience:
                raise TimeoutError(f"still running {self.patience:.0f} s after {self.kind} was killed")
        elif metrics and self.first_step is None:
            self.first_step = now
        elif self.first_step is not None and now > self.first_step + self.delay:
            victims = [p for p in marked(str(self.run.folder.resolve())) if kind(p) == self.kind]
            victims[0].send_signal(signal.SIGKILL)
            self.sent = now


def main() -> None:
    arguments = parser(__doc__, seed=1, patience=300.0, out=Path("outputs/kills"))
    arguments.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options, overrides = arguments.parse_known_args()
    settings = [
        *("+algo=grpo", "+platform=cpu", "+task=chain_sum", "trainer.n_gpus_per_node=2"),
        *("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
        *("actor_rollout_ref.rollout.n=4", "trainer.val_before_train=false", "trainer.test_freq=-1"),
        *("trainer.save_freq=1", "trainer.max_actor_ckpt_to_keep=2"),
        *overrides,
    ]
    print("| killed | s after step 1 | s to the end | named by | left running | second run | cache |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in options.kinds:
        delay = random.Random(f"{options.seed}-{name}").uniform(0, 10)
        run = VerlRun(options.out / f"{name}-{options.seed}", settings, STEPS)
        print(killed_and_resumed(Kill(run, name, delay, options.patience)), flush=True)


def killed_and_resumed(kill: Kill) -> str:
    """Kill a run, resume it, and return a row of the table."""
    run, before = kill.run, cached()
    try:
        run.go(on_metrics=kill.look)
        ended = "it ended well"
    except TimeoutError:
        ended = "it hung"
    except ProcessFailedError as error:
        ended = named_by(kill.kind, str(error), run)
    seconds = time.monotonic() - kill.sent if kill.sent is not None else float("nan")
    left = len(marked(str(run.folder.resolve())))
    run.go()
    resumed = f"step {max(run.metrics())} of {STEPS}, finished: {run.is_finished()}"
    same = "the same" if cached() == before else "CHANGED"
    return f"| {kill.kind} | {kill.delay:.1f} | {seconds:.0f} | {ended} | {left} | {resumed} | {same} |"


def named_by(victim: str, message: str, run: VerlRun) -> str:
    """Return where the victim is named: in the log's last lines, which the error repeats, or further up."""
    if victim == "driver":
        return "status -9 of the command" if "status -9" in message else "nothing"
    said = re.compile(rf"(died|dead|killed|Error).*{victim}|{victim}.*(died|dead|killed|Error)", re.I)
    (log,) = run.folder.glob("attempt-1.log")
    if said.search(message):
        return "the last lines"
    return "the log" if said.search(log.read_text(errors="replace")) else "nothing"


def cached() -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in cache_root().rglob("*") if file.is_file()}


if __name__ == "__main__":
    main()
