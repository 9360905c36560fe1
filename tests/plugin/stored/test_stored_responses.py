"""Test that responses from anywhere are trained on: agent loop, trainer, history, resume, bad input.

`stored_rollout` runs verl's agent-loop worker, verl's and this package's trainer and verl's training worker.
Not covered: Ray, TransferQueue and the inference server, which the end-to-end tests have.
"""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stored_rollout import Rollout, Server, rows_for_worker, small_model, token_log_probs, trained
from torch import Tensor
from transfer_queue.utils.serial_utils import decode, encode

from grpo_verl_ext.preflight import CHECKS
from grpo_verl_ext.preflight.tested_values import untested
from grpo_verl_ext.tasks.chain_sum.model import TURN_END, build_tokenizer
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.stored.sources import GivenResponses, ResponseHistory, StoredResponse
from grpo_verl_ext.verl_plugin.wire import Field

N = "actor_rollout_ref__rollout__n"
LOG_PROBS = "actor_rollout_ref__rollout__calculate_log_probs"


def data(**responses: Sequence[Any] | None) -> list[dict[str, Any]]:
    """One row a prompt."""
    return [
        {"prompt": prompt, "extra_info": {"index": number, "responses": given}}
        for number, (prompt, given) in enumerate(responses.items())
    ]


@pytest.fixture
def rollout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def made(rows: list[dict[str, Any]], **settings: Any) -> Rollout:
        found = Rollout(monkeypatch, tmp_path, rows, **settings)
        found.trainer._init_dataloader()
        return found

    return made


def by_prompt(rollout: Rollout, field: str = "responses") -> dict[str, list[Any]]:
    """A field of the responses to each prompt, sessions in order."""
    found: dict[str, dict[int, Any]] = {}
    for key, row in rollout.queue.rows.items():
        if "pad" not in key:
            value = row[field].tolist() if isinstance(row[field], Tensor) else row[field]
            found.setdefault(row["raw_prompt"][0]["content"], {})[int(key.split("_")[1])] = value
    return {prompt: [sessions[i] for i in sorted(sessions)] for prompt, sessions in found.items()}


TABLE = [list(tokens) for tokens in itertools.product(range(5), repeat=2)]
"""All responses of two tokens."""
BETA = 0.3
PROMPTS = ("ab", "dc")


def reward(response: list[int]) -> float:
    """Between 0 and 1, different for every response."""
    return (response[0] * 7 + response[1] * 11) % 25 / 24


def distribution(model: torch.nn.Module, prompt: str) -> Tensor:
    """Probabilities of `TABLE`, which add up to 1."""
    ids = ["abcd".index(letter) for letter in prompt]
    with torch.no_grad():
        return torch.stack([token_log_probs(model, ids, response).sum() for response in TABLE]).exp()


def total_variation(one: Tensor, other: Tensor) -> float:
    return 0.5 * (one - other).abs().sum().item()


@pytest.mark.ci
def test_gvpo_converges_to_its_optimum_and_grpo_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share of 1 and every response stored once: π′ e^{R/β}, by verl's worker, whatever wrote them."""
    start, variants, batches = small_model(), {}, {}
    for name in ("gvpo", "grpo"):
        actor = {"actor_rollout_ref__actor__ppo_epochs": 120, "actor_rollout_ref__actor__use_kl_loss": False}
        settings = {"algo": name, "reward": reward, "model": start, "share": 1.0, N: len(TABLE), **actor}
        own = Rollout(monkeypatch, tmp_path / name, data(**dict.fromkeys(PROMPTS, TABLE)), **settings)
        own.trainer._init_dataloader()
        batch, metrics = own.step()
        assert (own.server.asked, metrics["stored/share"]) == (0, 1.0)
        batches[name] = {"ranks": [rows_for_worker(own.queue, batch)], "extra_info": batch.extra_info}
        variants[name] = {
            "loss": name, "micro_batch": len(TABLE), "learning_rate": 5e-3, "dtype": "float64",
            "worker": "ours", "gradient_checkpointing": False, "lora_rank": 0, "terms": "all",
        }  # fmt: skip
    models = trained(tmp_path, start, variants, batches, n=len(TABLE), beta=BETA)
    for prompt in PROMPTS:
        anchor = distribution(start, prompt)
        assert anchor.sum().item() == pytest.approx(1, rel=1e-12)
        weights = [p * math.exp(reward(y) / BETA) for p, y in zip(anchor.tolist(), TABLE, strict=True)]
        wanted = torch.tensor([weight / math.fsum(weights) for weight in weights], dtype=torch.float64)
        assert total_variation(distribution(models["gvpo"], prompt), wanted) <= 0.02
        assert total_variation(distribution(models["grpo"], prompt), wanted) > 0.2
        assert total_variation(anchor, wanted) > 0.2, "it had somewhere to go"


def test_the_first_samples_are_stored_and_the_server_writes_the_others(
    rollout: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of four; a prompt with one response has three samples, and one without has four."""
    rows = data(ab=[[0, 1], [2, 3], [1, 1]], cd=["b"], da=None)
    rows[1]["extra_info"]["responses"] = [[1, 4]]
    server = Server([[letter % 4, 4] for letter in range(9)])
    run = rollout(rows, share=0.5, server=server, **{N: 4})
    assert "4 responses to 2 of 3 prompts, 3 of them within the share" in capsys.readouterr().err
    run.generate()
    responses, extra = by_prompt(run), by_prompt(run, "extra_fields")
    assert responses["ab"][:2] == [[0, 1], [2, 3]]
    assert responses["cd"][0] == [1, 4]
    assert server.asked == 9
    assert [Field.STORED_ORIGIN in each for each in extra["ab"]] == [True, True, False, False]
    assert [Field.STORED_ORIGIN in each for each in extra["cd"]] == [True, False, False, False]
    assert [Field.STORED_ORIGIN in each for each in extra["da"]] == [False] * 4
    assert extra["ab"][0][Field.STORED_ORIGIN] == {"step": 0, "log_probs": None}
    assert by_prompt(run, "rm_scores")["ab"][0] == [0.0, 2.0], "scored by the reward function"
    queued = [{"prompt": "", "responses": [None, None]}] * 4
    assert by_prompt(run, Field.STORED_RESPONSES)["ab"] == queued, "no response with every row"
    fields = {frozenset(row) for row in run.queue.rows.values()}
    assert len(fields) == 1, "the trainer reads fields of all rows at once"


def test_a_validation_samples_everything(rollout: Any) -> None:
    """verl asks for its default agent loop there, and the rows have no stored responses."""
    run = rollout(data(ab=[[0, 1], [2, 3]]), share=1.0, **{N: 2})
    assert run.config.actor_rollout_ref.rollout.agent.default_agent_loop == "single_turn_agent"
    assert set(run.trainer._next_train_batch()["agent_name"]) == {"grpo_ext_stored_single_turn_agent"}
    run.config.algorithm.grpo_ext.stored_responses.share = 0.0
    fresh = run.made_trainer()
    fresh._init_dataloader()
    assert not {"agent_name", Field.STORED_RESPONSES} & set(fresh._next_train_batch().keys())


def test_the_column_passes_transfer_queue() -> None:
    """Where a trainer keeps prompts in flight it is stored there, with numbers as they were."""
    response = StoredResponse(token_ids=np.array([3, 4], np.int32), log_probs=np.float32([-1, -2]), step=7)
    column = {Field.STORED_RESPONSES: [{"prompt": "p", "responses": [response, None]}]}
    (row,) = decode([bytes(memoryview(part)) for part in encode(column)])[Field.STORED_RESPONSES]
    found, none = row["responses"]
    assert none is None
    assert found["step"] == 7
    assert found["token_ids"].tolist() == [3, 4]
    assert found["log_probs"].tolist() == [-1.0, -2.0]


def test_recorded_log_probs_are_the_rollouts(rollout: Any) -> None:
    given = [{"token_ids": [0, 1], "log_probs": [-0.5, -0.25]}]
    server = Server([[3, 4]], log_prob=-1.5)
    run = rollout(data(ab=given), share=0.5, server=server, **{N: 2, LOG_PROBS: True})
    run.step()
    assert by_prompt(run, "rollout_log_probs")["ab"] == [[-0.5, -0.25], [-1.5, -1.5]]


def test_the_old_policy_of_stored_responses_is_the_actor(rollout: Any) -> None:
    """Two stored responses, and two sampled ones. In bypass mode it is verl's: the policy that wrote them."""
    given = [
        {"token_ids": [0, 1], "log_probs": [-0.5, -0.25]},
        {"token_ids": [2, 3], "log_probs": [-1.5, -2]},
    ]
    run = rollout(data(ab=given), algo="dapo", share=0.5, server=Server([[3, 4], [1, 2]]), **{N: 4})
    run.step()
    of_actor = [token_log_probs(run.model, [0, 1], y).tolist() for y in by_prompt(run)["ab"]]
    assert by_prompt(run, "old_log_probs")["ab"] == of_actor
    assert of_actor[0] != [-0.5, -0.25]


def test_metrics_by_origin(rollout: Any) -> None:
    """Of two prompts with two samples each; rewards are the first token; padding counts nowhere."""
    given = [{"token_ids": [2, 1], "log_probs": [-0.5, -0.25]}]
    run = rollout(
        data(ab=given, cd=None),
        share=0.5,
        server=Server([[1, 4], [3], [2, 2]], log_prob=-1.5),
        reward=lambda response: float(response[0]),
        actor_rollout_ref__actor__ppo_mini_batch_size=3,
        **{N: 2, LOG_PROBS: True},
    )
    _, metrics = run.step()
    assert any("pad" in key for key in run.queue.rows), "it has padding"
    responses = by_prompt(run)
    stored, (_, *sampled) = responses["ab"][0], [*responses["ab"], *responses["cd"]]
    prompts = [[0, 1], [2, 3], [2, 3]]
    of_stored = token_log_probs(run.model, [0, 1], stored).tolist()
    of_sampled = [
        x for p, y in zip(prompts, sampled, strict=True) for x in token_log_probs(run.model, p, y).tolist()
    ]
    assert metrics["stored/share"] == 1 / 4
    assert metrics["stored/reward"] == 2
    assert metrics["sampled/reward"] == pytest.approx((1 + 3 + 2) / 3)
    assert metrics["stored/log_prob"] == pytest.approx(sum(of_stored) / 2, rel=1e-6)
    assert metrics["sampled/log_prob"] == pytest.approx(sum(of_sampled) / 5, rel=1e-6)
    assert "stored/age" not in metrics


def test_what_is_not_there_is_not_logged(rollout: Any) -> None:
    _, metrics = rollout(data(ab=[[0, 1], [0, 2]]), share=1.0, **{N: 2}).step()
    assert not any(name.startswith("sampled/") for name in metrics)


HISTORY = {"source": "history", "share": 0.5, "max_age": 2}
prompt_id = ResponseHistory.prompt_id


def test_a_prompt_meets_its_earlier_samples(rollout: Any) -> None:
    """Two of four from the second step on; what was stored is not stored again, and ages."""
    server = Server([[letter, 4] for letter in range(4)] + [[letter, letter] for letter in [0, 1, 2, 3] * 2])
    run = rollout(data(ab=None), server=server, **HISTORY, **{N: 4})
    assert (run.step()[1]["stored/share"], run.server.asked) == (0, 4)
    earlier = by_prompt(run)["ab"]  # sessions reach the server in any order
    of_actor = token_log_probs(run.model, [0, 1], earlier[0])
    run.trainer.global_steps = 2
    second = run.step()[1]
    assert by_prompt(run)["ab"][:2] == earlier[:2], "sessions in order"
    assert (second["stored/share"], run.server.asked, second["stored/age"]) == (0.5, 6, 1)
    origin = by_prompt(run, "extra_fields")["ab"][0][Field.STORED_ORIGIN]
    assert origin["step"] == 1
    assert origin["log_probs"].tolist() == pytest.approx(of_actor.tolist(), rel=1e-6)
    # verl's staleness: written by the weights before step 1.
    versions = [run.queue.tags[key]["max_global_steps"] for key in run.queue.rows if key.split("_")[1] == "0"]
    assert versions == [0]
    sampled = by_prompt(run)["ab"][2:]
    run.trainer.global_steps = 3
    run.step()
    assert by_prompt(run)["ab"][:2] == sampled, "the newest, which are not those stored in step 2"
    run.trainer.global_steps = 6
    assert run.step()[1]["stored/share"] == 0, "too old"


def test_a_killed_training_goes_on_with_its_history(
    rollout: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Checkpoint at step 2, killed in step 3: the same samples as without the kill, of both prompts."""

    def started() -> Rollout:
        server = Server([[letter % 4, letter // 4 % 5] for letter in range(40)])
        return rollout(data(ab=None, cd=None), server=server, **HISTORY, **{N: 4})

    whole = started()
    for step in (1, 2, 3):
        whole.trainer.global_steps = step
        whole.step()
        if step == 2:
            whole.trainer._save_checkpoint()
    resumed = started()
    resumed.trainer._load_checkpoint()
    assert resumed.trainer.global_steps == 2
    resumed.trainer.global_steps += 1
    _, metrics = resumed.step()
    assert metrics["stored/share"] == 0.5
    for field in ("responses", "extra_fields"):
        for prompt, found in by_prompt(resumed, field).items():
            for one, other in zip(found[:2], by_prompt(whole, field)[prompt][:2], strict=True):
                assert repr(one) == repr(other)


def history(count: int = 2, max_age: int = 3) -> ResponseHistory:
    return ResponseHistory(count, max_age)


def response(step: int, token: int = 0) -> StoredResponse:
    return StoredResponse(
        token_ids=np.array([token, 4], np.int32), log_probs=np.float32([-1.0, -0.5 * step]), step=step
    )


def test_the_newest_stay_and_of_one_step_the_first() -> None:
    kept = history()
    for step, token in [(1, 0), (2, 1), (2, 2), (2, 3), (1, 4)]:
        kept.add("p", response(step, token))
    assert [each["token_ids"][0] for each in kept.of("p", 3)] == [1, 2]
    assert kept.of("another prompt", 3) == []


@pytest.mark.parametrize(("step", "found"), [(2, 1), (4, 1), (5, 0)])
def test_the_age_is_the_step_that_uses_it_minus_its_own(step: int, found: int) -> None:
    kept = history(max_age=3)
    kept.add("p", response(1))
    assert len(kept.of("p", step)) == found


def test_what_no_later_step_may_use_is_forgotten(tmp_path: Path) -> None:
    kept = history(max_age=3)
    kept.add("p", response(1))
    kept.add("q", response(2))
    kept.forget(4)
    kept.save(tmp_path)
    again = history(max_age=100)
    again.load(tmp_path, {"p", "q"})
    assert again.of("p", 5) == []
    assert len(again.of("q", 5)) == 1


def test_what_is_saved_is_what_is_read(tmp_path: Path) -> None:
    kept = history()
    for prompt, step in itertools.product(map(prompt_id, ([{"content": "ä"}], [{"content": "b"}])), (1, 2)):
        kept.add(prompt, response(step, token=step))
    kept.save(tmp_path)
    again = history()
    again.load(tmp_path, {prompt_id([{"content": "ä"}]), prompt_id([{"content": "b"}])})
    assert repr(again._of_prompt) == repr(kept._of_prompt)
    assert [file.name for file in tmp_path.iterdir()] == ["response_history.parquet"]
    history().save(tmp_path)
    again.load(tmp_path, set())
    assert again._of_prompt == {}


def test_a_history_of_an_unknown_prompt_is_refused(tmp_path: Path) -> None:
    kept = history()
    kept.add(prompt_id([{"content": "ab"}]), response(1))
    kept.save(tmp_path)
    with pytest.raises(SettingError, match=r"responses to 1 prompts that data\.train_files does not have"):
        history().load(tmp_path, {prompt_id([{"content": "cd"}])})


def test_a_checkpoint_without_a_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"parquet does not exist; .*=disable"):
        history().load(tmp_path, set())


def test_a_prompt_of_images_has_no_history() -> None:
    with pytest.raises(SettingError, match=r"more than text.*Type: .*source=data"):
        prompt_id([{"content": [{"type": "image", "image": object()}]}])


BYTES = build_tokenizer()


def given(**changes: Any) -> GivenResponses:
    defaults = {"count": 2, "budget": 8, "tokenizer": BYTES, "with_log_probs": False}
    defaults["end"] = BYTES.eos_token_id
    return GivenResponses(key="responses", **(defaults | changes))


def read(*responses: Any, **changes: Any) -> list[list[int]]:
    return [each["token_ids"].tolist() for each in given(**changes).of({"responses": list(responses)})]


def test_texts_get_an_end_and_token_ids_are_taken_as_they_are() -> None:
    end = BYTES.eos_token_id
    assert read("ab", f"ab{TURN_END}") == [[97, 98, end]] * 2
    assert read([97, 98], np.array([97, end])) == [[97, 98], [97, end]]
    assert read((97, np.int64(98))) == [[97, 98]]
    assert read({"token_ids": [97], "log_probs": [-0.5]}) == [[97]]
    assert read({"token_ids": np.array([97, 98])}, {"token_ids": np.array([0])}) == [[97, 98], [0]]
    assert read("a", "b", "c") == [[97, end], [98, end]], "the first ones, as many as the share has"
    assert given().of(None) == given().of({"responses": None}) == given().of({"other": ["a"]}) == []
    assert read("a", end=None) == [[97]]


def rows(*responses: Any) -> list[dict[str, Any]]:
    return [{"extra_info": {"responses": ["a"]}}, {"extra_info": {"responses": list(responses)}}]


@pytest.mark.parametrize(
    ("responses", "changes", "message"),
    [
        (["a", "bcdefghi"], {}, r"response 1 in extra_info\.responses of row 1 has 9 tokens; valid .* 8"),
        ([[97, 265]], {}, r"has token 265, which is of another tokenizer; valid is 0 … 264"),
        ([[-1]], {}, "has token -1"),
        (["A\u030a"], {}, r"does not survive the tokenizer, which makes 'Å'… of 'A\u030a'…; valid are a"),
        ([TURN_END], {}, r"response 0 in extra_info\.responses of row 1 is empty"),
        *(
            ([each], {}, rf"response 0 .* has {message}.*; valid is a text, a list of token ids, or \{{tok")
            for each, message in (
                ([], r"token_ids=\[\] "),
                ({"text": "a"}, "token_ids=.*required"),
                ([True], r"token_ids\.0=True "),
                (97, "token_ids=97 "),
                ({"token_ids": [97], "log_probs": [[-1], [-1, -1]]}, r"log_probs\.0=\[-1\] "),
                ({"token_ids": [97], "log_probs": [0.5]}, r"log_probs\.0=0\.5 "),
                ({"token_ids": [97], "log_probs": np.array([math.nan])}, r"log_probs\.0=nan "),
            )
        ),
        ([{"token_ids": [97], "log_probs": [-1, -1]}], {}, r"has 2 log_probs; valid are 1, one "),
        (["a"], {"with_log_probs": True}, "has no log_probs, and .*calculate_log_probs is true"),
    ],
)
def test_a_response_that_cannot_be_trained_on_is_named(
    responses: list[Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        given(**changes).check(rows(*responses))


@pytest.mark.parametrize("alone", ["abc", {"token_ids": [97]}])
def test_a_response_that_is_in_no_list_is_named(alone: Any) -> None:
    """Read as a list, a text would be its letters."""
    with pytest.raises(SettingError, match=r"extra_info\.responses of row 1 is .*; valid is a list of resp"):
        given().check([{"extra_info": {"responses": ["a"]}}, {"extra_info": {"responses": alone}}])


def test_data_without_any_response_are_refused() -> None:
    with pytest.raises(SettingError, match=r"none of the 2 rows .* has a response"):
        given().check([{"extra_info": {"answers": ["a"]}}, {}])


def test_it_is_named_before_anything_is_started(rollout: Any) -> None:
    """verl's trainer reads its data first, and starts workers and servers after that."""
    with pytest.raises(SettingError, match=r"response 0 in extra_info\.responses of row 1 has 3 tokens"):
        rollout(data(ab=[[0, 1]], cd=[[0, 1, 2]]), share=0.5, **{N: 2})


def test_data_that_ask_for_another_agent_loop_are_refused(rollout: Any) -> None:
    several = [row | {"agent_name": "tool_agent"} for row in data(ab=[[0, 1]])]
    with pytest.raises(SettingError, match="ask for agent_name=tool_agent, and a stored"):
        rollout(several, share=0.5, **{N: 2})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{share: 1.5}", r"share is 1\.5; valid is a number in \[0, 1\]\. Type: "),
        ("{share: -0.1}", r"share is -0\.1; valid is"),
        ("{share: 0.3}", r"n is 8, and 2\.4 samples cannot.*multiple of 1/8.*share=0\.25"),
        ("{share: 0.05}", r"0\.4 samples cannot be taken.*share=0\.125"),
        ("{source: history, max_age: 0}", r"max_age is 0; valid is an integer ≥ 1"),
        ("0.5", r"stored_responses is .*; valid is a section, or null"),
    ],
)
def test_wrong_settings(value: str, message: str) -> None:
    wrong = composed([
        *("+algo=gvpo", "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.n=8"),
        f"+algorithm.grpo_ext.stored_responses={value}",
    ])  # fmt: skip
    with pytest.raises(SettingError, match=message):
        CHECKS["stored-responses"](wrong)
    if "section" in message:
        assert not [each for each in untested(wrong) if each.check != "stored-responses"], "named once"
