"""Remember how Hydra merges the files of packages, and what a ``${…}`` says: half of a composition's time.

What a command line changes beside its choice of files is applied each time, and so is a file of a folder.
"""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import omegaconf.base
import pytest
from hydra._internal import config_loader_impl, defaults_list
from omegaconf import DictConfig


@pytest.fixture(scope="session", autouse=True)
def remembered_compositions() -> Iterator[None]:
    loader = config_loader_impl.ConfigLoaderImpl
    listed, merged = config_loader_impl.create_defaults_list, loader._compose_config_from_defaults_list
    lists: dict[Any, defaults_list.DefaultsList] = {}
    configs: dict[Any, bytes] = {}

    def create(repo: Any, config_name: str, overrides_list: list[Any], **more: bool) -> Any:
        asked = defaults_list.Overrides(repo=repo, overrides_list=overrides_list)
        chosen = [word for word in overrides_list if word not in asked.config_overrides]
        if _reads_a_folder(repo):
            return listed(repo=repo, config_name=config_name, overrides_list=overrides_list, **more)
        key = (str(repo.get_sources()), config_name, *(word.input_line for word in chosen))
        if key not in lists:
            lists[key] = listed(repo=repo, config_name=config_name, overrides_list=chosen, **more)
        return replace(lists[key], config_overrides=asked.config_overrides)

    def compose(self: Any, defaults: list[Any], repo: Any) -> DictConfig:
        if _reads_a_folder(repo):
            return merged(self, defaults, repo)
        key = (str(repo.get_sources()), str(defaults))
        if key not in configs:
            configs[key] = pickle.dumps(merged(self, defaults, repo))
        return pickle.loads(configs[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config_loader_impl, "create_defaults_list", create)
        patch.setattr(loader, "_compose_config_from_defaults_list", compose)
        patch.setattr(omegaconf.base, "parse", cache(omegaconf.base.parse))
        yield


def _reads_a_folder(repo: Any) -> bool:
    return any(source.scheme() == "file" for source in repo.get_sources())
