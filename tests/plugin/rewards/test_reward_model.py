"""Test the reward manager ``rule_and_model``: inputs, outputs, refusals before training."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import web
from omegaconf import DictConfig
from tensordict import TensorDict
from transformers import AutoModelForSequenceClassification
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls

from grpo_verl_ext.rewards.learned import LearnedReward
from grpo_verl_ext.tasks.chain_sum.model import build_model, build_tokenizer
from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin.compose import CompositionError, composed
from grpo_verl_ext.verl_plugin.config import Options, RewardModelOptions
from grpo_verl_ext.verl_plugin.rewards import manager
from grpo_verl_ext.verl_plugin.rewards.checks import check_reward_model
from grpo_verl_ext.verl_plugin.rewards.response_scores import Judged

BYTES = build_tokenizer()
MANAGER = "reward.reward_manager.name=rule_and_model"
SERVER = ("reward.reward_model.enable=true", "reward.reward_model.enable_resource_pool=true")
SECTION = "algorithm.grpo_ext.reward_model"


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sequence classifier with random weights."""
    folder, base = tmp_path_factory.mktemp("reward_model"), tmp_path_factory.mktemp("base")
    build_model(TaskSettings(width=32, layers=1, heads=1, feed_forward=32), BYTES, seed=1).save_pretrained(
        base
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    model.config.pad_token_id = BYTES.pad_token_id
    model.save_pretrained(folder)
    BYTES.save_pretrained(folder)
    return folder


def one_response(prompt: str, response: str) -> DataProto:
    """As verl hands it over: the prompt padded on the left, the response on the right, marks inside."""
    prompt_ids = [BYTES.convert_tokens_to_ids("<|im_start|>"), *BYTES.encode(prompt)]
    response_ids = [*BYTES.encode(response), BYTES.eos_token_id]
    mask = [0, 0, *[1] * (len(prompt_ids) + len(response_ids)), 0]
    batch = TensorDict(
        {
            "prompts": torch.tensor([[0, 0, *prompt_ids]]),
            "responses": torch.tensor([[*response_ids, 0]]),
            "attention_mask": torch.tensor([mask]),
        },
        batch_size=1,
    )
    data = DataProto(batch=batch)
    for key, value in {
        "data_source": "chain_sum",
        "reward_model": {"ground_truth": "9"},
        "extra_info": {"terms": [4, 5]},
        "raw_prompt": [{"role": "user", "content": "4+5=?"}],
    }.items():
        data.non_tensor_batch[key] = _object_array(value)
    return data


def _object_array(value: Any) -> Any:
    import numpy as np

    array = np.empty(1, dtype=object)
    array[0] = value
    return array


def right_by_rule(**_: Any) -> dict[str, float]:
    return {"score": 2.0, "acc": 1.0}


def asked(config: DictConfig, rule: Any = right_by_rule, **router: Any) -> dict[str, Any]:
    """What the manager says of one right response, from inside an event loop as verl has one."""

    async def run() -> dict[str, Any]:
        of_verl = get_reward_manager_cls("rule_and_model")(config, BYTES, rule, **router)
        of_verl.loop = asyncio.get_running_loop()
        result: dict[str, Any] = await of_verl.run_single(one_response("user\n4+5=?\n", "<answer>9</answer>"))
        return result

    return asyncio.run(run())


class TestManager:
    def test_a_failure_is_reported_to_the_trainer(
        self, reward_model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """verl would train on the other responses to the prompt."""
        reported: list[Exception] = []
        monkeypatch.setattr(manager, "report_failure", reported.append)
        monkeypatch.setattr(LearnedReward, "scores", lambda *_: [float("nan")])
        with pytest.raises(ValueError, match="reward_model_score of a response is nan"):
            asked(composed([MANAGER, f"+{SECTION}.path={reward_model}"]))
        assert [str(error) for error in reported] == [
            "reward_model_score of a response is nan; valid is a finite number"
        ]

    def test_the_last_of_several_outputs_is_read_without_padding(self) -> None:
        """As verl pads the outputs of a session: prompts and responses apart, the mask of both together."""
        batch = TensorDict(
            {
                "prompts": torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]]),
                "responses": torch.tensor([[1, 2, 0], [3, 4, 5]]),
                "attention_mask": torch.tensor([[1] * 6, [1] * 5 + [0]]),
            },
            batch_size=2,
        )
        data = DataProto(batch=batch)
        data.non_tensor_batch = {"prompt_len": np.array([4, 2]), "response_len": np.array([2, 3])}
        assert manager.RuleAndModelRewardManager._ids(data[-1:]) == ([9, 10], [3, 4, 5])

    def test_the_score_is_the_weighted_sum_and_both_parts_are_reported(self, reward_model: Path) -> None:
        config = composed(
            [
                MANAGER,
                f"+{SECTION}.path={reward_model}",
                f"+{SECTION}.weight=0.5",
                f"+{SECTION}.rule_weight=3",
            ]
        )
        result = asked(config)
        by_model = LearnedReward.load(reward_model).scores([("user\n4+5=?\n", "<answer>9</answer>")])[0]
        assert result["reward_score"] == pytest.approx(3 * 2.0 + 0.5 * by_model, rel=1e-6)
        extra = result["reward_extra_info"]
        assert extra["reward_model_score"] == pytest.approx(by_model, rel=1e-6)
        assert (extra["rule_score"], extra["acc"], extra["score"]) == (2.0, 1.0, result["reward_score"])

    def test_the_model_alone_in_its_own_chat_template(self, reward_model: Path) -> None:
        """The template of these models closes each turn with <|im_end|> and a new line."""
        options = ("chat_template=true", "dtype=auto", "rule_weight=0", "weight=2")
        config = composed([MANAGER, *(f"+{SECTION}.{each}" for each in (f"path={reward_model}", *options))])
        chat = "<|im_start|>user\n4+5=?<|im_end|>\n<|im_start|>assistant\n<answer>9</answer><|im_end|>\n"
        model = AutoModelForSequenceClassification.from_pretrained(reward_model)
        with torch.inference_mode():
            by_hand = model(torch.tensor([BYTES.encode(chat)])).logits.item()
        result = asked(config, rule=None)
        assert result["reward_score"] == pytest.approx(2 * by_hand, rel=1e-6)
        assert result["reward_extra_info"] == {
            "reward_model_score": pytest.approx(by_hand, rel=1e-6),
            "score": result["reward_score"],
        }

    def test_a_template_without_the_chat_is_said(self) -> None:
        with pytest.raises(ValueError, match=r"chat_template .* is true, but the batch has no raw_prompt"):
            _ = Judged(None, "user\n4+5=?\n", "9").chat

    def test_several_models_are_added_and_reported_by_name(self, reward_model: Path, tmp_path: Path) -> None:
        """The second model is the first with its head doubled, so its scores are twice the first's."""
        model = AutoModelForSequenceClassification.from_pretrained(reward_model)
        with torch.no_grad():
            model.score.weight *= 2
        model.save_pretrained(tmp_path)
        BYTES.save_pretrained(tmp_path)
        models = f"{SECTION}s"
        of_two = (f"+{models}.terse.path={reward_model}", f"+{models}.terse.weight=-1")
        config = composed([MANAGER, *of_two, f"+{models}.kind.path={tmp_path}", f"+{SECTION}.rule_weight=3"])
        result = asked(config)
        terse = LearnedReward.load(reward_model).scores([("user\n4+5=?\n", "<answer>9</answer>")])[0]
        assert result["reward_extra_info"] == {
            "acc": 1.0,
            "rule_score": 2.0,
            "reward_model_score.terse": pytest.approx(terse, rel=1e-6),
            "reward_model_score.kind": pytest.approx(2 * terse, rel=1e-6),
            "score": pytest.approx(3 * 2.0 - terse + 2 * terse, rel=1e-6),
        }
        assert result["reward_score"] == result["reward_extra_info"]["score"]

        alone = composed([MANAGER, *of_two, f"+{SECTION}.path={tmp_path}", f"+{SECTION}.rule_weight=0"])
        assert asked(alone, rule=None)["reward_extra_info"] == {
            "reward_model_score": pytest.approx(2 * terse, rel=1e-6),
            "reward_model_score.terse": pytest.approx(terse, rel=1e-6),
            "score": pytest.approx(2 * terse - terse, rel=1e-5),
        }

    @pytest.mark.parametrize(("asked_for", "found"), [("auto", torch.bfloat16), ("float32", torch.float32)])
    def test_the_precision_is_that_of_the_files_where_asked(
        self, reward_model: Path, tmp_path: Path, asked_for: str, found: torch.dtype
    ) -> None:
        model = AutoModelForSequenceClassification.from_pretrained(reward_model, dtype=torch.bfloat16)
        model.save_pretrained(tmp_path)
        BYTES.save_pretrained(tmp_path)
        learned = LearnedReward.load(tmp_path, dtype=asked_for)
        assert learned._model.dtype == found
        assert isinstance(learned.scores([("4+5=?", "9")])[0], float)

    def test_a_score_that_is_not_finite_is_refused_by_name(self, reward_model: Path, tmp_path: Path) -> None:
        model = AutoModelForSequenceClassification.from_pretrained(reward_model)
        with torch.no_grad():
            model.score.weight.fill_(torch.nan)
        model.save_pretrained(tmp_path)
        BYTES.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=r"reward_model_score\.kind of a response is nan; valid is a"):
            asked(composed([MANAGER, f"+{SECTION}s.kind.path={tmp_path}"]))

    def test_the_model_reads_the_prompt(self, reward_model: Path) -> None:
        learned = LearnedReward.load(reward_model)
        assert learned.scores([("user\n4+5=?\n", "9")]) != learned.scores([("user\n4+4=?\n", "9")])

    def test_verls_server_is_asked_for_the_same_text(self) -> None:
        """A server that speaks vLLM's /classify; the one of vLLM needs a machine with a free GPU."""
        heard: list[dict[str, Any]] = []

        async def classify(request: web.Request) -> web.Response:
            heard.append(await request.json())
            return web.json_response({"data": [{"probs": [0.25]}]})

        config = composed(
            [MANAGER, "reward.reward_model.enable=true", "reward.reward_model.model_path=served/model"]
        )

        async def serve_and_ask() -> dict[str, Any]:
            application = web.Application()
            application.router.add_post("/classify", classify)
            runner = web.AppRunner(application)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            try:
                return await asyncio.to_thread(
                    asked, config, reward_router_address=f"127.0.0.1:{port}", reward_model_tokenizer=BYTES
                )
            finally:
                await runner.cleanup()

        assert asyncio.run(serve_and_ask())["reward_score"] == pytest.approx(2.25)
        assert heard == [
            {
                "model": "served/model",
                "input": "user\n4+5=?\n<answer>9</answer><|im_end|>",
                "use_activation": False,
            }
        ]


class TestChecks:
    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (
                [f"+{SECTION}.path=m"],
                rf"reward\.reward_manager\.name is naive, but {SECTION} is set, .* asks no reward",
            ),
            ([MANAGER], rf"there is no reward model: {SECTION}\.path is null"),
            ([MANAGER, f"+{SECTION}.path=./nowhere"], r"there is no nowhere/config\.json"),
            (
                [MANAGER, "reward.reward_model.enable=true"],
                r"never calls reward\.reward_manager\.name=rule_and_model; valid is .* Type",
            ),
            (
                [MANAGER, f"+{SECTION}.paths=m"],
                rf"{SECTION}\.paths='m' is not an option; valid are path, weight",
            ),
            ([MANAGER, f"+{SECTION}.weight=nan"], rf"{SECTION}\.weight is nan; valid is a finite number"),
            ([MANAGER, f"+{SECTION}.rule_weight=true"], rf"{SECTION}\.rule_weight is true"),
            ([f"+{SECTION}s.kind.path=m"], rf"naive, but {SECTION}s is set, .* asks no reward"),
            ([MANAGER, f"+{SECTION}s.kind.path=./nowhere"], r"there is no nowhere/config\.json"),
            ([MANAGER, f"+{SECTION}s.kind.weight=1"], rf"{SECTION}s\.kind\.path is null; valid is a folder"),
            (
                [MANAGER, f"+{SECTION}s.kind.rule_weight=1"],
                r"kind\.rule_weight=1 is not an option; valid are",
            ),
            ([MANAGER, f"+{SECTION}s.kind=m"], rf"{SECTION}s is .* valid is a section for each name"),
            ([MANAGER, f"+{SECTION}s.a-b.path=m"], rf"{SECTION}s is .* which is an identifier"),
            (
                [MANAGER, f"+{SECTION}s={{}}"],
                rf"{SECTION}s is .* valid is a section for each name.* Type: '{SECTION}s=\{{helpful: .*\}}'",
            ),
            (
                [
                    MANAGER,
                    f"+{SECTION}.path=m",
                    f"+{SECTION}s.kind.path=m",
                    "reward.reward_model.enable=true",
                ],
                r"never calls reward\.reward_manager\.name=rule_and_model",
            ),
            (
                [MANAGER, f"+{SECTION}.weight=2", f"+{SECTION}s.kind.path=m"],
                rf"{SECTION}\.weight is 2, but {SECTION}\.path is null .* no model has it; valid is only",
            ),
            (
                [MANAGER, f"+{SECTION}.chat_template=true", f"+{SECTION}s.kind.path=m"],
                rf"chat_template is true, .* Type: \+{SECTION}\.path=<.*>, or ~{SECTION}\.chat_template",
            ),
        ],
    )
    def test_what_cannot_work_is_refused(self, overrides: list[str], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            check_reward_model(composed(overrides))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", r"config\.json is not valid JSON"),
            ("[]", r"config\.json is not valid JSON of a model \(it is a list\)"),
            ("{}", "its architecture is none, not a classifier"),
            (json.dumps({"architectures": ["Qwen2ForCausalLM"]}), "is Qwen2ForCausalLM, not a classifier"),
        ],
    )
    def test_a_folder_of_something_else_is_refused(self, tmp_path: Path, content: str, message: str) -> None:
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            check_reward_model(composed([MANAGER, f"+{SECTION}.path={tmp_path}"]))

    @pytest.mark.parametrize("section", [SECTION, f"{SECTION}s.kind"])
    def test_a_template_that_is_not_there_is_refused(
        self, reward_model: Path, tmp_path: Path, section: str
    ) -> None:
        (tmp_path / "config.json").write_bytes((reward_model / "config.json").read_bytes())
        own = [MANAGER, f"+{section}.path={tmp_path}", f"+{section}.chat_template=true"]
        with pytest.raises(ValueError, match=r"its tokenizer has no chat template\. Type: .*template=false"):
            check_reward_model(composed(own))
        BYTES.save_pretrained(tmp_path)
        check_reward_model(composed(own))

    def test_verls_server_beside_a_rule_needs_its_own_accelerators(self) -> None:
        """Else verl asks after the rollout, with the texts alone."""
        rules = "reward.custom_reward_function.path=pkg://verl.utils.reward_score"
        with pytest.raises(SettingError, match=r"enable_resource_pool is false, .*Type: .*_pool=true"):
            check_reward_model(composed([MANAGER, SERVER[0], rules]))
        check_reward_model(composed([MANAGER, SERVER[0], rules, f"+{SECTION}.rule_weight=0"]))

    def test_what_works_passes(self, reward_model: Path) -> None:
        check_reward_model(composed([]))
        check_reward_model(composed([MANAGER, f"+{SECTION}.path={reward_model}"]))
        check_reward_model(composed([MANAGER, f"+{SECTION}.path=organisation/model"]))
        several = (f"+{SECTION}s.kind.path={reward_model}", f"+{SECTION}s.terse.path=organisation/model")
        check_reward_model(composed([MANAGER, *several, f"+{SECTION}.rule_weight=0"]))
        rules = "reward.custom_reward_function.path=pkg://verl.utils.reward_score"
        check_reward_model(composed([MANAGER, *SERVER, rules]))

    def test_defaults(self) -> None:
        empty = Options.from_config({"grpo_ext": {"reward_model": {}}})
        assert empty.reward_model == RewardModelOptions(path=None, weight=1.0, rule_weight=1.0)
        assert Options.from_config(None).reward_model is None


@pytest.mark.parametrize("line", ["+algo=grop", "no.such.key=1", "="])
def test_what_verl_would_refuse_is_a_composition_error(line: str) -> None:
    with pytest.raises(CompositionError):
        composed([line])


def test_a_trl_that_verl_cannot_bear_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_verl_ext.preflight import environment

    config = composed(["actor_rollout_ref.rollout.name=vllm"])

    def said() -> list[str]:
        return [str(found) for found in environment.advise_packages(config) if "trl" in str(found)]

    assert said() == []
    monkeypatch.setattr(environment.importlib.metadata, "version", lambda name: "1.13.0")
    (message,) = said()
    assert message.startswith("trl 1.13.0 is installed")
    assert message.endswith("Type: pip install 'trl<1.13'")


def test_a_classifier_whose_tokenizer_has_no_end_and_no_padding(reward_model: Path) -> None:
    """Such as a cross-encoder; the text ends with the response."""
    learned = LearnedReward.load(reward_model)
    with_end = learned.scores([("4+5=?", f"9{learned._tokenizer.eos_token}")])
    learned._tokenizer.eos_token = None
    learned._tokenizer.pad_token = None
    assert learned.scores([("4+5=?", "9<|im_end|>")]) == pytest.approx(with_end)
    assert learned.scores([("4+5=?", "9")]) != pytest.approx(with_end)
