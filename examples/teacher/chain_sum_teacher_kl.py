"""Compute KL(teacher ‖ student) of the students that a comparison of distillations has trained.

    python examples/chain_sum_teacher_kl.py TEACHER GRID VARIANT …

TEACHER is the folder that examples/chain_sum_teacher.py has made, GRID the comparison's, whose runs have kept
their checkpoints. Prints, for each variant, means over the starts in nats of a response, on the teacher's
responses to held-out prompts: both log-probs; their difference, which estimates the KL; and, where both have
the same tokens, Σ_t KL(π_T(· | y_<t) ‖ π_θ(· | y_<t)), which is exact over the vocabulary at each token. The
two have the same expectation, the KL of whole responses, and the second has less noise. Needs no GPU.
"""

import argparse
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from grpo_verl_ext.tasks.causal_lm import IGNORED_LABEL, encode
from grpo_verl_ext.tasks.chain_sum.model import build_tokenizer
from grpo_verl_ext.tasks.folders import TEST, read_parquet

ROWS = 256
"""First rows of the teacher's file: those of `algorithm.grpo_ext.gold_responses`."""


def load_student(run: Path) -> Any:
    """Load the last checkpoint of a run of one rank."""
    [actor] = run.glob("checkpoints/global_step_*/actor")
    saved = torch.load(actor / "model_world_size_1_rank_0.pt", weights_only=False, map_location="cpu")
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(actor / "huggingface"), dtype=torch.float32
    )
    model.load_state_dict({name: getattr(value, "_local_tensor", value) for name, value in saved.items()})
    return model.eval()


@torch.no_grad()
def token_log_probs(model: Any, tokenizer: Any, texts: list[tuple[str, str]]) -> tuple[Tensor, Tensor]:
    """Return log π over the vocabulary, (B, T, V), and labels, (B, T), of questions with responses."""
    tokens, labels = encode(tokenizer, texts, max_response_tokens=model.config.max_position_embeddings)
    return model(tokens, use_cache=False).logits[:, :-1].log_softmax(-1), labels[:, 1:]


def log_prob(log_probs: Tensor, labels: Tensor) -> float:
    """Return the mean over responses of Σ_t log π(y_t), in nats.

    Args:
        log_probs: over the vocabulary, (B, T, V).
        labels: (B, T).
    """
    chosen = log_probs.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return float(chosen.where(labels != IGNORED_LABEL, 0).sum(-1).mean())


def exact_kl(teacher: Tensor, student: Tensor, labels: Tensor) -> float:
    """Return the mean over responses of Σ_t KL(teacher ‖ student) of the next token, in nats.

    Args:
        teacher: log-probs over the vocabulary, (B, T, V).
        student: the same of the student.
        labels: (B, T).
    """
    of_tokens = (teacher.exp() * (teacher - student)).sum(-1)
    return float(of_tokens.where(labels != IGNORED_LABEL, 0).sum(-1).mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("teacher", type=Path)
    parser.add_argument("grid", type=Path)
    parser.add_argument("variants", nargs="+")
    given = parser.parse_args()
    policy, tokenizer = build_tokenizer(), AutoTokenizer.from_pretrained(given.teacher)
    teacher = AutoModelForCausalLM.from_pretrained(given.teacher, dtype=torch.float32).eval()
    same_tokens = policy.get_vocab() == tokenizer.get_vocab()
    print("variant: log-prob of the teacher, of the student, their difference, exact KL; starts")
    for variant in given.variants:
        found = []
        for run in sorted((given.grid / variant).glob("seed-*")):
            rows = read_parquet(given.teacher / run.name / TEST)[:ROWS]
            texts = [(row["prompt"][0]["content"], row["extra_info"]["response"]) for row in rows]
            of_teacher, teachers_tokens = token_log_probs(teacher, tokenizer, texts)
            of_student, labels = token_log_probs(load_student(run), policy, texts)
            own, others = log_prob(of_teacher, teachers_tokens), log_prob(of_student, labels)
            kl = exact_kl(of_teacher, of_student, labels) if same_tokens else float("nan")
            found.append((own, others, own - others, kl))
        means = " ".join(f"{mean(column):.4f}" for column in zip(*found, strict=True))
        print(f"{variant}: {means}; {len(found)}", flush=True)


if __name__ == "__main__":
    main()
