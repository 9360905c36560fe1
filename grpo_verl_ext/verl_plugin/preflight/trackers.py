"""Check that the loggers of a training are ones of verl's, installed here, and that wandb has a key."""

import importlib.util
from collections.abc import Iterator
from difflib import get_close_matches

from omegaconf import DictConfig

from grpo_verl_ext.utils.errors import Line, Problem

KEY = "trainer.logger"
PACKAGES = {
    "tracking": "wandb",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "swanlab": "swanlab",
    "vemlp_wandb": "volcengine_ml_platform",
    "tensorboard": "tensorboard",
    "clearml": "clearml",
    "trackio": "trackio",
    "rl_insight": "rl_insight",
}
"""Values of ``trainer.logger`` → the module that verl's ``Tracking`` imports for them."""


def advise_loggers(config: DictConfig, *, keys: bool = False) -> Iterator[Problem]:
    """Warn of loggers that verl's ``Tracking`` refuses, and of those without their package here.

    Args:
        keys: also of wandb without a key. One training asks for it; verl's default has wandb.
    """
    given = config.trainer.get("logger") or []
    names = [given] if isinstance(given, str) else [*map(str, given)]
    for name in names:
        others, seen = [each for each in names if each != name], f"{KEY} is {_as_list(names)}"
        if name not in (valid := known_loggers()):
            near = next(iter(get_close_matches(name, valid, n=1)), "console")
            line = Line(f"{KEY}={_as_list([*others, near])}")
            yield Problem(KEY, names, line, f"verl has no logger {name}", valid, seen)
        elif lacks := lacking(name, key=keys):
            why, remedy = lacks
            yield Problem(KEY, names, f"{remedy}, or {KEY}={_as_list(others or ['console'])}", why, seen=seen)


def known_loggers() -> list[str]:
    """Return the loggers that verl has."""
    from verl.utils.tracking import Tracking

    return [*dict.fromkeys([*Tracking.supported_backend, *PACKAGES])]


def lacking(name: str, *, key: bool = True) -> tuple[str, str] | None:
    """Return what one of verl's loggers lacks on this machine, and what to type; None: nothing.

    Args:
        key: whether to look for its key.
    """
    package = PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        return f"{package} is not installed here", f"pip install {package}"
    if key and package == "wandb" and _wandb_lacks_key():
        return "wandb has no key here", "wandb login, or WANDB_MODE=offline in front of the command"
    return None


def _wandb_lacks_key() -> bool:
    """Whether ``wandb.init`` would ask for a key; nothing is sent."""
    import wandb
    from requests.utils import get_netrc_auth

    settings = wandb.setup().settings
    given = settings.api_key or settings.identity_token_file or get_netrc_auth(settings.base_url)
    return settings.mode == "online" and not given


def _as_list(names: list[str]) -> str:
    """Return a list as typed on the command line."""
    return f"[{','.join(names)}]"
