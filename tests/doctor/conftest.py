"""A whole command line for the doctor."""

import json

import pytest
import torch
from data_files import write_prompts
from safetensors.torch import save_file


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides with which every preset passes: data, a model of 2048 positions, groups of four."""
    folder = tmp_path_factory.mktemp("files")
    write_prompts(folder / "train.parquet")
    model = folder / "model"
    model.mkdir()
    config = {"model_type": "qwen2", "max_position_embeddings": 2048, "architectures": ["Qwen2ForCausalLM"]}
    (model / "config.json").write_text(json.dumps(config))
    save_file({"weight": torch.zeros(2)}, model / "model.safetensors")
    return [
        "+platform=cpu",
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/train.parquet",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.rollout.n=4",
        "data.train_batch_size=64",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "actor_rollout_ref.actor.use_dynamic_bsz=true",
        "data.max_prompt_length=512",
        "data.max_response_length=512",
    ]
