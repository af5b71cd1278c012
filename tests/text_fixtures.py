"""Tiny random text encoders in the layout of real ones, loaded through the real code path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel

WORDS = ["dog", "bark", "man", "speaking", "rain", "a", "mask", "falls", "on", "the", "roof"]
START, END = "<|startoftext|>", "<|endoftext|>"


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    letters = list("abcdefghijklmnopqrstuvwxyz[]*")
    pieces = [*letters, *(f"##{letter}" for letter in letters)]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [word for word in WORDS if word not in pieces]
    vocabulary = {token: index for index, token in enumerate([*specials, *pieces, *words])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.5,
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    folder = tmp_path_factory.mktemp("clip")
    alphabet = sorted(ByteLevel.alphabet())
    # As in CLIP's vocabulary: bytes, bytes that end a word, merges, then start and end.
    tokens = [*alphabet, *(f"{char}</w>" for char in alphabet)]
    merges: list[str] = []
    for word in WORDS:
        symbols = [*word[:-1], f"{word[-1]}</w>"]
        while len(symbols) > 1:
            left, right = symbols[0], symbols[1]
            symbols = [left + right, *symbols[2:]]
            if f"{left} {right}" not in merges:
                merges.append(f"{left} {right}")
                tokens.append(left + right)
    tokens += [START, END]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", "utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "CLIPTokenizer",
                "bos_token": START,
                "eos_token": END,
                "unk_token": END,
                "pad_token": END,
                "model_max_length": 77,
            }
        ),
        encoding="utf-8",
    )
    torch.manual_seed(0)
    config = CLIPTextConfig(
        vocab_size=len(tokens),
        hidden_size=32,
        intermediate_size=64,
        projection_dim=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=77,
        bos_token_id=vocabulary[START],
        eos_token_id=vocabulary[END],
        pad_token_id=vocabulary[END],
    )
    CLIPTextModelWithProjection(config).save_pretrained(folder)
    return folder
