"""A tokenizer that shares most of its tokens with the tiny models' own, under other numbers."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def make_other_tokenizer(size: int = 340) -> Tokenizer:
    """Bytes and other merges, with another special token at the front; one of the tiny tokenizer's is among them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|begin|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = ["the target drafts and the daemon returns what was added ", "class Draft:\n    def add(self):\n"]
    tokenizer.train_from_iterator([line * 4 for line in lines], trainer)
    return tokenizer


def make_word_tokenizer(words: int) -> Tokenizer:
    """Whole words alone, none of which another tokenizer has."""
    tokenizer = Tokenizer(models.WordLevel({f"word{n}": n for n in range(words)}, unk_token="word0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def give_tokenizer(directory: Path, tokenizer: Tokenizer) -> Path:
    """To a model directory, in the place of its own."""
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory
