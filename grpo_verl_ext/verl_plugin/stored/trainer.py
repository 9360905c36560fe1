"""Train on stored responses beside sampled ones: the part in the trainer."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.model import get_generation_config

from grpo_verl_ext.algorithms import ragged
from grpo_verl_ext.utils.console import say
from grpo_verl_ext.utils.end_tokens import end_of_response
from grpo_verl_ext.verl_plugin.agent_loops import refuse_other_loop
from grpo_verl_ext.verl_plugin.batch.fields import actor_folder, are_responses, nested, were_sampled
from grpo_verl_ext.verl_plugin.config import STORED_AGENT_LOOP, Options
from grpo_verl_ext.verl_plugin.stored.sources import GivenResponses, ResponseHistory, StoredResponse
from grpo_verl_ext.verl_plugin.wire import Field


class StoredResponsesMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Give stored responses to the agent loop, log both kinds, and keep sampled ones for later steps."""

    _given: GivenResponses | None = None
    _history: ResponseHistory | None = None
    _known_prompts: set[str]

    def _init_dataloader(self) -> None:
        """Check the responses of the training data, before anything else is started."""
        super()._init_dataloader()
        options = Options.from_config(self.config.algorithm).stored_responses
        rollout = self.config.actor_rollout_ref.rollout
        count = round(options.share * rollout.n) if options else 0
        if options is None or count == 0:
            return
        if options.source == "history":
            assert options.max_age is not None  # a row of the feature refused null
            self._history = ResponseHistory(count, options.max_age)
            self._known_prompts = {self._history.prompt_id(row["raw_prompt"]) for row in self._rows_of_data()}
            where = f"responses of this training, at most {options.max_age} steps old"
        else:
            model = os.path.expanduser(self.config.actor_rollout_ref.model.path)
            template = self.config.data.get("apply_chat_template_kwargs") or {}
            self._given = GivenResponses(
                key=options.key,
                count=count,
                budget=self.config.data.max_response_length,
                tokenizer=self.tokenizer,
                end=end_of_response(self.tokenizer, get_generation_config(model=model), template),
                with_log_probs=rollout.calculate_log_probs,
            )
            where = self._given.check(self._rows_of_data())
        say(f"{count} of {rollout.n} samples of a prompt are taken from {where}")

    def _rows_of_data(self) -> Iterator[Mapping[str, Any]]:
        for number in range(len(self.train_dataset)):
            row = self.train_dataset[number]
            refuse_other_loop(row, "a stored response is one turn", "~algorithm.grpo_ext.stored_responses")
            yield row

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """Add the stored responses of each prompt, and the agent loop that takes them."""
        batch = super()._next_train_batch(num_prompts)
        if self._history is not None:
            prompts = [self._history.prompt_id(messages) for messages in tu.get(batch, "raw_prompt")]
            found = [self._history.of(prompt, self.global_steps) for prompt in prompts]
        elif self._given is not None:
            found = [self._given.of(extra_info) for extra_info in tu.get(batch, "extra_info")]
            prompts = [""] * len(found)
        else:
            return batch
        stored = [{"prompt": prompt, "responses": own} for prompt, own in zip(prompts, found, strict=True)]
        tu.assign_non_tensor_stack(batch, Field.STORED_RESPONSES, stored)
        tu.assign_non_tensor_stack(batch, "agent_name", [STORED_AGENT_LOOP] * len(stored))
        return batch

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Log share, reward, log-prob and age of both kinds; keep sampled responses, sessions in order."""
        batch = super()._compute_old_log_prob(batch, metrics)
        if Options.from_config(self.config.algorithm).stored_responses is None:
            return batch
        fields = ("responses", "response_mask", "rm_scores", "old_log_probs", "extra_fields")
        data = nested(batch, *fields, *[Field.STORED_RESPONSES] * (self._history is not None))
        origins = [extra.get(Field.STORED_ORIGIN) for extra in tu.get(data, "extra_fields")]
        member = torch.tensor(are_responses(batch))
        stored = torch.tensor([origin is not None for origin in origins]) & member
        metrics["stored/share"] = float(stored.sum() / member.sum())
        mask, offsets = data["response_mask"].values(), data["response_mask"].offsets()
        rewards = ragged.row_sums(data["rm_scores"].values(), torch.ones_like(mask), offsets)
        sums = ragged.row_sums(data["old_log_probs"].values(), mask, offsets)
        lengths = ragged.row_lengths(mask, offsets)
        for name, chosen in (("stored", stored), ("sampled", member & ~stored)):
            if chosen.any():
                metrics[f"{name}/reward"] = float(rewards[chosen].mean())
                metrics[f"{name}/log_prob"] = float(sums[chosen].sum() / lengths[chosen].sum())
        steps = [origin["step"] for origin, counts in zip(origins, stored.tolist(), strict=True) if counts]
        if any(steps):  # those of the data have no age
            metrics["stored/age"] = self.global_steps - sum(steps) / len(steps)
        if self._history is None:
            return batch
        stored_for, is_sampled = tu.get(data, Field.STORED_RESPONSES), were_sampled(batch, data)
        token_ids, log_probs = data["responses"].unbind(), data["old_log_probs"].unbind()
        for row in sorted(range(len(batch.keys)), key=lambda row: int(batch.keys[row].rsplit("_", 2)[1])):
            if is_sampled[row] and len(token_ids[row]):
                response = StoredResponse(
                    token_ids=token_ids[row].int().numpy(),
                    log_probs=log_probs[row].float().numpy(),
                    step=self.global_steps,
                )
                self._history.add(stored_for[row]["prompt"], response)
        self._history.forget(self.global_steps)
        return batch

    def _save_checkpoint(self) -> None:
        """Save the history beside the actor's shards, before verl's marker of a complete step."""
        if self._history is not None:
            self._history.save(actor_folder(self))
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self._history is not None and self.global_steps > 0:
            self._history.load(actor_folder(self), self._known_prompts)
