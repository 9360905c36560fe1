"""Measure memory and time of three GVPO steps on the CPU platform with a user's own model.

python benchmarks/cpu_own_model.py [--out outputs/cpu_own_model] [verl overrides]

The model is a Llama of 135 M parameters and 49,152 words, in the shape of SmolLM2-135M with random weights.
The data are 64 short sums. Only data, reward, model, lengths and batch are set. The memory of the processes
is summed twice a second as proportional set sizes (PSS), so that a page shared by several counts once.
"""

from collections import Counter
from pathlib import Path

import psutil

WORDS, PROMPTS, STEPS = 49152, 64, 3
REPORTED = (
    "critic/score/mean",
    "actor/grad_norm",
    "actor/gvpo_weight_sum",
    "training/rollout_probs_diff_max",
)


def compute_score(solution_str: str, **_: object) -> float:
    """Return the share of even words; random weights solve no sum, and GVPO needs rewards that differ."""
    words = [word for word in solution_str.replace(">", " ").replace("<w", " ").split() if word.isdigit()]
    return sum(int(word) % 2 == 0 for word in words) / max(1, len(words))


def main() -> None:
    # Not imported at the top: verl loads this file for its reward, from another folder.
    from common import GIB, memory, parser, train

    options, overrides = parser(__doc__, out=Path("outputs/cpu_own_model")).parse_known_args()
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{make_model(folder / 'model') / 1e6:.1f} M parameters", flush=True)
    make_data(folder / "sums.parquet")
    highest = Counter[str]()

    def look() -> None:
        nonlocal highest
        highest = max(highest, memory(psutil.Process().children(recursive=True), "pss"), key=Counter.total)

    _, logged, records = train(folder, [*settings(folder), *overrides], look)
    steps = [round(record["timing_s/step"], 1) for record in records]
    print(f"first step ended after {logged[0]:.0f} s, the last after {logged[-1]:.0f} s; steps: {steps} s")
    print(f"peak of all processes: {highest.total() / GIB:.1f} GiB")
    for name, size in highest.most_common():
        print(f"  {name:24s} {size / GIB:.1f} GiB")
    for key in REPORTED:
        print(f"{key}: {[record.get(key) for record in records]}")


def settings(folder: Path) -> list[str]:
    return [
        *("+algo=gvpo", "+platform=cpu"),
        *(f"data.train_files={folder / 'sums.parquet'}", f"data.val_files={folder / 'sums.parquet'}"),
        f"reward.custom_reward_function.path={Path(__file__).resolve()}",
        f"actor_rollout_ref.model.path={folder / 'model'}",
        *("data.max_prompt_length=64", "data.max_response_length=64"),
        *("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
        *("actor_rollout_ref.rollout.n=4", f"trainer.total_training_steps={STEPS}"),
    ]


def make_model(folder: Path) -> int:
    """Save the model and a tokenizer of bytes, chat marks and filler words; return the parameter count."""
    import torch
    from common import save_model
    from transformers import Qwen2Tokenizer

    from grpo_verl_ext.tasks.chain_sum.model import build_tokenizer

    bytes_and_marks = build_tokenizer()
    known = bytes_and_marks.get_vocab()
    known |= {f"<w{number}>": number for number in range(len(known), WORDS)}
    kept = ("unk_token", "eos_token", "pad_token", "chat_template")
    same = {name: getattr(bytes_and_marks, name) for name in kept}
    tokenizer = Qwen2Tokenizer(vocab=known, merges=[], extra_special_tokens=["<|im_start|>"], **same)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    shape |= {"max_position_embeddings": 8192, "bos_token_id": None, **ids}
    return save_model(folder, "llama", WORDS, 576, 1536, **shape)


def make_data(file: Path) -> None:
    import pandas

    prompts = [[{"role": "user", "content": f"{number}+{number + 1}=?"}] for number in range(PROMPTS)]
    answers = [{"style": "rule", "ground_truth": str(2 * number + 1)} for number in range(PROMPTS)]
    rows = {"data_source": "sums", "prompt": prompts, "reward_model": answers}
    pandas.DataFrame(rows).to_parquet(file)


if __name__ == "__main__":
    main()
