"""A whole command line for the doctor, and Hydra's files parsed once."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pandas
import pytest
import torch
from hydra._internal.config_repository import ConfigRepository
from safetensors.torch import save_file


@pytest.fixture(scope="module", autouse=True)
def each_file_is_parsed_once() -> Iterator[None]:
    """Let Hydra parse each file once, not for each configuration, which takes half of the time."""
    parse, parsed = ConfigRepository.load_config, dict[tuple[str, ...], Any]()

    def load_config(repository: ConfigRepository, config_path: str) -> Any:
        key = (config_path, *(source.path for source in repository.sources))
        if key not in parsed:
            parsed[key] = parse(repository, config_path)
        return copy.deepcopy(parsed[key])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ConfigRepository, "load_config", load_config)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides with which every preset passes: data, a model of 2048 positions, groups of four."""
    folder = tmp_path_factory.mktemp("files")
    pandas.DataFrame({"prompt": ["1+1=?"]}).to_parquet(folder / "train.parquet")
    model = folder / "model"
    model.mkdir()
    described = {
        "model_type": "qwen2",
        "max_position_embeddings": 2048,
        "architectures": ["Qwen2ForCausalLM"],
    }
    (model / "config.json").write_text(json.dumps(described))
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
