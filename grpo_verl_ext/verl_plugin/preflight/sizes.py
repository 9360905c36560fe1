"""Do the numbers divide and fit that verl only looks at after a rollout?"""

from omegaconf import DictConfig

from grpo_verl_ext.verl_plugin.findings import SettingError
from grpo_verl_ext.verl_plugin.keys import ACTOR, MODEL, ROLLOUT
from grpo_verl_ext.verl_plugin.model_folder import REMEDY, local_folder, read_config
from grpo_verl_ext.verl_plugin.options import is_count


def check_mini_batch(config: DictConfig) -> None:
    """Each rank gets as many rows of a mini-batch, and cuts them into equal micro-batches.

    verl's engine asserts both on its first update, after the first rollout.
    """
    actor, n = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout.n
    ranks = data_parallel_size(config)
    rows, key = actor.ppo_mini_batch_size * n, f"{ACTOR}.ppo_mini_batch_size"
    if rows % ranks:
        raise SettingError(
            f"{key} is {actor.ppo_mini_batch_size}: with {n} responses a prompt "
            f"({ROLLOUT}.n) its {rows} rows do not divide among {ranks} data-parallel ranks; valid is a "
            f"multiple. Type: {key}={_next_multiple(actor.ppo_mini_batch_size, n, ranks)}",
            key=key,
        )
    micro, key = actor.ppo_micro_batch_size_per_gpu, f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    if not actor.use_dynamic_bsz and micro and (rows // ranks) % micro:
        raise SettingError(
            f"{key} is {micro}, which does not divide the {rows // ranks} rows that a rank has of a "
            f"mini-batch: {actor.ppo_mini_batch_size} prompts × {n} responses / {ranks} ranks; valid is a "
            f"divisor. Type: {ACTOR}.use_dynamic_bsz=true, or {key}=1",
            key=key,
        )


def check_model_length(config: DictConfig) -> None:
    """Prompt and response together must fit into what vLLM, and the model, take."""
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    limits = {f"{ROLLOUT}.max_model_len": config.actor_rollout_ref.rollout.get("max_model_len")}
    limits[MODEL] = _positions(str(config.actor_rollout_ref.model.path))
    for key, limit in limits.items():
        if limit is not None and prompt + response > limit:
            raise SettingError(
                f"{key} allows {limit} tokens, but data.max_prompt_length={prompt} and "
                f"data.max_response_length={response} make {prompt + response}; valid is a sum of at most "
                f"{limit}. Type: {_fitting(prompt, response, limit, key)}",
                key=key,
            )


def data_parallel_size(config: DictConfig) -> int:
    """Ranks with rows of their own; those of one sequence share theirs."""
    ranks = config.trainer.n_gpus_per_node * config.trainer.nnodes
    of_one_sequence = config.actor_rollout_ref.actor.get("ulysses_sequence_parallel_size") or 1
    return int(max(1, ranks // of_one_sequence))


def _next_multiple(prompts: int, n: int, ranks: int) -> int:
    return next(count for count in range(prompts, prompts + ranks + 1) if count * n % ranks == 0)


def _fitting(prompt: int, response: int, limit: int, key: str) -> str:
    """The line to type: a shorter response, or, where the prompts alone are too long, shorter prompts."""
    if prompt < limit:
        return f"data.max_response_length={limit - prompt}"
    larger = "<a model with more positions>" if key == MODEL else prompt + response
    if response < limit:
        return f"data.max_prompt_length={limit - response}, or {key}={larger}"
    half = limit // 2
    return f"data.max_prompt_length={half} data.max_response_length={half}, or {key}={larger}"


def _positions(model: str) -> int | None:
    """Of a model that is a folder; what a hub has is not asked for."""
    folder = local_folder(model)
    if folder is None or not (folder / "config.json").is_file():
        return None
    content = read_config(folder, key=MODEL, remedy=REMEDY)
    positions = content.get("max_position_embeddings")
    if positions is None or content.get("rope_scaling"):
        return None
    if not is_count(positions):
        raise SettingError(
            f"{folder}/config.json: max_position_embeddings is {positions!r}; valid is an integer ≥ 1. "
            f"{REMEDY}",
            key=MODEL,
        )
    return positions
