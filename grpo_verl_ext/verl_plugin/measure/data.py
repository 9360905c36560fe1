"""Read the first rows of files as verl reads its data."""

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.utils import create_rl_dataset


def first_rows(files: Any, count: int | None, tokenizer: Any, config: DictConfig) -> Iterator[Any]:
    """Yield the first rows of files as verl reads its data; None: all rows."""
    # But for what would leave rows out or take others than the first.
    data = OmegaConf.create(OmegaConf.to_container(config.data, resolve=True))
    data.filter_overlong_prompts = data.shuffle = False
    dataset = create_rl_dataset(files, data, tokenizer, None, is_train=False, max_samples=count or -1)
    for number in range(min(len(dataset), count or len(dataset))):
        yield dataset[number]
