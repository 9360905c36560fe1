"""Measure memory and time of three GVPO steps on the CPU platform with a user's own model.

python benchmarks/cpu_own_model.py [--out outputs/cpu_own_model] [verl overrides]

The model is a Llama of 135 M parameters and 49,152 words, in the shape of SmolLM2-135M with random weights.
The data are 64 short sums. Only data, model, lengths and batch are set. The memory of the processes is summed
every two seconds as proportional set sizes (PSS), so that a page shared by several counts once.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

from grpo_verl_ext.utils.console import ending

WORDS, PROMPTS, STEPS = 49152, 64, 3
REPORTED = (
    "critic/score/mean",
    "actor/grad_norm",
    "actor/gvpo_weight_sum",
    "training/rollout_probs_diff_max",
)
GIB = 2**30


def compute_score(solution_str: str, **_: object) -> float:
    """Return the share of even words; random weights solve no sum, and GVPO needs rewards that differ."""
    words = [word for word in solution_str.replace(">", " ").replace("<w", " ").split() if word.isdigit()]
    return sum(int(word) % 2 == 0 for word in words) / max(1, len(words))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/cpu_own_model"))
    options, overrides = parser.parse_known_args()
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{make_model(folder / 'model') / 1e6:.1f} M parameters", flush=True)
    make_data(folder / "sums.parquet")
    train(folder, [*settings(folder), *overrides])


def settings(folder: Path) -> list[str]:
    return [
        *("+algo=gvpo", "+platform=cpu"),
        *(f"data.train_files={folder / 'sums.parquet'}", f"data.val_files={folder / 'sums.parquet'}"),
        *(f"reward.custom_reward_function.path={Path(__file__).resolve()}",),
        f"actor_rollout_ref.model.path={folder / 'model'}",
        *("data.max_prompt_length=64", "data.max_response_length=64"),
        *("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
        "actor_rollout_ref.rollout.n=4",
        *(f"trainer.total_training_steps={STEPS}", "trainer.val_before_train=false", "trainer.test_freq=-1"),
        *("trainer.save_freq=-1", "trainer.logger=[console,file]"),
        f"hydra.run.dir={folder / 'hydra'}",
    ]


def make_model(folder: Path) -> int:
    """Save the model and a tokenizer of bytes, chat marks and filler words; return the parameter count."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Tokenizer

    from grpo_verl_ext.tasks.chain_sum.model import CHAT_TEMPLATE, build_tokenizer

    bytes_and_marks = build_tokenizer()
    known = bytes_and_marks.get_vocab()
    vocab = known | {f"<w{number}>": number for number in range(len(known), WORDS)}
    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=[],
        unk_token=bytes_and_marks.unk_token,
        eos_token=bytes_and_marks.eos_token,
        pad_token=bytes_and_marks.pad_token,
        extra_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            dtype="float32",
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return int(model.num_parameters())


def make_data(file: Path) -> None:
    import pandas

    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{number}+{number + 1}=?"}],
            "reward_model": {"style": "rule", "ground_truth": str(2 * number + 1)},
        }
        for number in range(PROMPTS)
    ]
    pandas.DataFrame(rows).to_parquet(file)


def train(folder: Path, overrides: list[str]) -> None:
    """Train to the end and print times and memory."""
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    peak, at_peak, ended = 0, Counter[str](), list[float]()
    started = time.time()
    with (folder / "verl.log").open("w") as log:
        trainer = subprocess.Popen(
            [sys.executable, "-m", "verl.trainer.main_ppo", *overrides],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "VERL_FILE_LOGGER_PATH": str(metrics)},
        )
        while trainer.poll() is None:
            memory = proportional(trainer.pid)
            if memory.total() > peak:
                peak, at_peak = memory.total(), memory
            lines = metrics.read_text().count("\n") if metrics.exists() else 0
            ended += [time.time() - started] * (lines - len(ended))
            time.sleep(2)
    if trainer.returncode != 0:
        sys.exit((folder / "verl.log").read_text()[-3000:] + f"\nended with {ending(trainer.returncode)}")
    records = [json.loads(line)["data"] for line in metrics.read_text().splitlines()]
    steps = [round(record["timing_s/step"], 1) for record in records]
    print(f"first step ended after {ended[0]:.0f} s, the last after {ended[-1]:.0f} s; steps: {steps} s")
    print(f"peak of all processes: {peak / GIB:.1f} GiB")
    for name, size in at_peak.most_common():
        print(f"  {name:24s} {size / GIB:.1f} GiB")
    for key in REPORTED:
        print(f"{key}: {[record.get(key) for record in records]}")


def proportional(driver: int) -> Counter[str]:
    """Return the bytes of the driver and all processes that it started, by kind of process."""
    # Not imported at the top: verl loads this file for its reward, from another folder.
    from run_processes import kind

    found = Counter[str]()
    try:
        processes = [psutil.Process(driver), *psutil.Process(driver).children(recursive=True)]
    except psutil.NoSuchProcess:
        return found
    for process in processes:
        try:
            found[kind(process)] += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


if __name__ == "__main__":
    main()
