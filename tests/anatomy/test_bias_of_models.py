"""Test the bias of the KL estimators between two models against a plain computation over tokens."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from grpo_verl_ext.anatomy import kl_estimators as measured
from grpo_verl_ext.anatomy.dump import AnatomyError
from grpo_verl_ext.anatomy.kl_estimators import Tally, measure_bias
from grpo_verl_ext.runs.dumps import Response
from grpo_verl_ext.tasks.chain_sum.model import build_model, build_tokenizer
from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings

TOKENIZER = build_tokenizer()
PROMPT = "user\n1+1=?\nassistant\n"


def response(text: str, prompt: str = PROMPT) -> Response:
    return Response("p", prompt, text, None, 1.0, 1)


@pytest.fixture(scope="module")
def moved(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moved")
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(3)
    model.save_pretrained(folder)
    return folder


def log_probs(folder: Path, text: str) -> Tensor:
    """(response tokens with the end, V), from the chat template and the response."""
    ids = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "1+1=?"}], add_generation_prompt=True, return_dict=False
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids + TOKENIZER.encode(text)])).logits[0]
    return logits[len(ids) - 1 :].double().log_softmax(-1)


def test_it_is_the_plain_computation(policy: Path, moved: Path) -> None:
    texts = ["12;", "<answer>2</answer>"]
    found = measure_bias(moved, policy, TOKENIZER, [response(text) for text in texts], None)

    p, q = (torch.cat([log_probs(folder, text) for text in texts]) for folder in (moved, policy))
    ratio = p - q
    kl = (p.exp() * ratio).sum(-1)
    gradient = p.exp() * (ratio - kl.unsqueeze(-1))
    other = p.exp() - q.exp()  # the expected gradient of k3
    assert kl.mean() > 0.01
    # Three bytes; two tags and a byte; and the end of each.
    assert (found.responses, found.positions, found.prompts_as_text) == (2, 4 + 4, 0)
    # Single precision through the models.
    assert found.kl == pytest.approx(kl.mean().item(), rel=1e-4)
    k1, k2, k3 = (found.estimators[name] for name in ("k1", "k2", "k3"))
    assert (k1.value, k3.value) == pytest.approx((found.kl, found.kl), abs=1e-12)
    assert (k1.value_bias, k3.value_bias) == pytest.approx((0, 0), abs=1e-12)
    assert k2.value == pytest.approx((p.exp() * ratio.square()).sum(-1).mean().item() / 2, rel=1e-4)
    assert k2.value_bias == pytest.approx(k2.value - found.kl, abs=1e-12)
    assert (k1.gradient_error, k1.cosine) == (pytest.approx(1, abs=1e-12), None)
    assert (k2.gradient_error, k2.cosine) == (pytest.approx(0, abs=1e-9), pytest.approx(1, abs=1e-12))
    assert k3.gradient_error == pytest.approx(((other - gradient).norm() / gradient.norm()).item(), rel=1e-4)
    cosine = (other * gradient).sum() / other.norm() / gradient.norm()
    assert k3.cosine == pytest.approx(cosine.item(), rel=1e-4)


def test_a_response_that_fills_the_budget_has_no_end(policy: Path, moved: Path) -> None:
    found = measure_bias(moved, policy, TOKENIZER, [response("1234")], 4)
    wanted = (log_probs(moved, "1234").exp() * (log_probs(moved, "1234") - log_probs(policy, "1234"))).sum(-1)
    assert found.positions == 4
    assert found.kl == pytest.approx(wanted[:4].mean().item(), rel=1e-4)


def test_of_a_long_response_positions_are_drawn_and_count_for_all_of_it(
    policy: Path, moved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "POSITIONS", 3)
    seen, add = [], Tally.add

    def noted(tally: Tally, logits: Tensor, ref_logits: Tensor, weight: float) -> None:
        seen.append((len(logits), weight))
        add(tally, logits, ref_logits, weight)

    monkeypatch.setattr(Tally, "add", noted)
    found = measure_bias(moved, policy, TOKENIZER, [response("1"), response("12345678")], None)
    # One byte and eight, and the end of each: 3 of 9 are drawn.
    assert seen == [(2, 1.0), (3, 3.0)]
    assert found.positions == 5


def test_a_weight_is_as_many_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "LOGITS_AT_ONCE", 20)  # 2 positions of 9 logits
    generator = torch.Generator().manual_seed(4)
    logits, ref_logits = torch.randn(2, 5, 9, generator=generator)
    heavy, repeated = Tally(), Tally()
    heavy.add(logits[:2], ref_logits[:2], weight=3.0)
    heavy.add(logits[2:], ref_logits[2:])
    rows = [0, 1, 0, 1, 0, 1, 2, 3, 4]
    repeated.add(logits[rows], ref_logits[rows])
    assert (heavy.tokens, repeated.tokens) == (9, 9)
    assert heavy.kl == pytest.approx(repeated.kl)
    for name, bias in heavy.biases().items():
        assert bias.value == pytest.approx(repeated.biases()[name].value)
        assert bias.gradient_error == pytest.approx(repeated.biases()[name].gradient_error, abs=1e-9)


def test_a_policy_that_is_its_reference(policy: Path) -> None:
    found = measure_bias(policy, policy, TOKENIZER, [response("12")], None)
    assert found.kl == 0
    for bias in found.estimators.values():
        assert (bias.value, bias.value_bias, bias.gradient_error, bias.cosine) == (0, 0, None, None)


def test_prompts_outside_the_template_are_counted(policy: Path, moved: Path) -> None:
    responses = [response("1", "Question 1"), response("1"), response("2", "Question 2")]
    assert measure_bias(moved, policy, TOKENIZER, responses, None).prompts_as_text == 2


def test_models_that_cannot_be_compared(policy: Path, tmp_path: Path) -> None:
    with pytest.raises(AnatomyError, match=r"has no model .*Type: --reference <folder>"):
        measure_bias(policy, tmp_path, TOKENIZER, [response("1")], None)
    wider = build_model(TaskSettings(width=32, layers=1, heads=1, feed_forward=32), TOKENIZER, seed=1)
    wider.resize_token_embeddings(300)
    wider.save_pretrained(tmp_path / "wider")
    shutil.copy(policy / "tokenizer.json", tmp_path / "wider")
    with pytest.raises(AnatomyError, match=r"logits for 265 tokens and .*wider for 300; .*one vocabulary"):
        measure_bias(policy, tmp_path / "wider", TOKENIZER, [response("1")], None)
