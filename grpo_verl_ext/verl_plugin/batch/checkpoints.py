"""Where the trainer's own state is in verl's checkpoints."""

from pathlib import Path

from omegaconf import DictConfig


def actor_folder(trainer: DictConfig, step: int) -> Path:
    """Return the actor's folder in the checkpoint of a step; verl removes it with old checkpoints.

    Args:
        trainer: verl's section ``trainer``.
        step: the training step, of the checkpoint to write or to resume from.
    """
    if trainer.resume_mode == "resume_path" and f"global_step_{step}" in trainer.resume_from_path:
        checkpoint = Path(trainer.resume_from_path)
    else:
        checkpoint = Path(trainer.default_local_dir) / f"global_step_{step}"
    return checkpoint.absolute() / "actor"
