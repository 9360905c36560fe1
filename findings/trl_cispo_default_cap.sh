#!/usr/bin/env bash
# One expects: `loss_type="cispo"` of TRL trains by its loss, whose weights are capped above 1 (arXiv 2506.13585).
# TRL 1.16.0: the cap is `epsilon_high` itself, not 1 + `epsilon_high`, and null takes `epsilon`, which is 0.2. Every weight
# is then 0.2, whatever its ratio: a policy gradient without any, of a fifth of the size. No warning.
# `GRPOTrainer._compute_loss`: `torch.clamp(coef_1, max=self.epsilon_high)`.
# Adam hides the size, not that the ratio is gone.
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" trl==1.16.0 torch==2.13.0 transformers==5.10.4 datasets==5.2.0 accelerate==1.14.0
"$place/venv/bin/python" -W ignore - 2> "$place/stderr" << 'PYTHON' || { tail -5 "$place/stderr" >&2; exit 1; }
import sys

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, ProgressCallback, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

SEEN = ["gradient with epsilon_high null, beside that with 5: 0.200", "warnings that speak of epsilon: 0"]
letters = {letter: number for number, letter in enumerate("_abcdefgh")}
tokenizer = Tokenizer(models.WordLevel(letters, unk_token="_"))
tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
words = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="_", eos_token="h", padding_side="left")
prompts = Dataset.from_dict({"prompt": ["ab", "cd", "ef", "ga"]})


def gradient(cap):
    """Return the norm of the first update's gradient."""
    set_seed(0)
    small = {"vocab_size": 9, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = Qwen2Config(**small, num_attention_heads=2, num_key_value_heads=2, eos_token_id=8, pad_token_id=0)
    options = {"loss_type": "cispo", "epsilon_high": cap, "beta": 0.0, "max_grad_norm": 1e9}
    options |= {"per_device_train_batch_size": 8, "num_generations": 8, "max_completion_length": 6, "max_steps": 1}
    options |= {"logging_steps": 1, "report_to": "none", "use_cpu": True, "save_strategy": "no", "bf16": False}
    trainer = GRPOTrainer(
        Qwen2ForCausalLM(config),
        reward_funcs=lambda completions, **_: [float(text.count("a")) + len(text) / 9 for text in completions],
        args=GRPOConfig("out", **options),
        train_dataset=prompts,
        processing_class=words,
    )
    trainer.remove_callback(ProgressCallback)
    trainer.train()
    return next(line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line)


seen = ["gradient with epsilon_high null, beside that with 5: %.3f" % (gradient(None) / gradient(5.0))]
sys.stderr.flush()
said = open("stderr").read()
seen.append("warnings that speak of epsilon: %d" % said.count("epsilon"))
print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
