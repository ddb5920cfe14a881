"""From a sentence to attention, step by step: words, token ids, X, then Q, K, V, A and C.

    python sentence.py
    python sentence.py --causal --picture attention.png "the fat cat sat on the mat"

Everything is plain NumPy, with weights drawn at random: a trained model would have learned them.
Each token asks with its query; the keys of all tokens answer; A says how much of each token's
value goes into its context vector in C. The three functions are what `qkvac` checks:

    qkvac check sentence.py
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

import numpy as np

QKVAC = {
    "name": "sentence",
    "dtypes": ["float64", "float32"],
    "supports": ["batches", "empty", "layouts"],
    "arithmetic": {"softmax": "shifted, divided"},
}
"""What the check may ask of these functions."""

SENTENCE = "the fat cat sat on the mat"


# --- the mathematics -------------------------------------------------------------------------


def embedding(tokens, E, P):
    """X[..., n, d]: a row of E[t, d] for each token, plus the row of P[p, d] for its place."""
    return E[tokens] + P[: tokens.shape[-1]]


def attention(X, Wq, Wk, Wv):
    """Q, K, V, A and C of tokens X[..., n, d] under weights [d, c]: all tokens see each other."""
    return attend(X @ Wq, X @ Wk, X @ Wv)


def causal_attention(X, Wq, Wk, Wv):
    """The same where each token sees itself and the tokens before it alone."""
    return attend(X @ Wq, X @ Wk, X @ Wv, np.tri(X.shape[-2], dtype=bool))


def attend(Q, K, V, visible=True):
    """A = softmax(Q K^T / sqrt(c)) row by row over what is visible, and C = A V."""
    scores = Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-1], dtype=Q.dtype)
    scores = np.where(visible, scores, -np.inf)
    # The exponential of large scores overflows; a row's largest taken away changes nothing else.
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    A = powers / powers.sum(axis=-1, keepdims=True)
    return {"Q": Q, "K": K, "V": V, "A": A, "C": A @ V}


# --- from text to X --------------------------------------------------------------------------


def tokenized(sentence):
    """The words, their ids, and the vocabulary: each word once, in order of appearance."""
    words = sentence.split()
    vocabulary = list(dict.fromkeys(words))
    return words, np.array([vocabulary.index(word) for word in words]), vocabulary


def drawn(vocabulary, length, width, columns, seed):
    """Tables E and P and weights Wq, Wk and Wv, as a model has them before it is trained."""
    rng = np.random.default_rng(seed)
    E, P = rng.normal(size=(len(vocabulary), width)), rng.normal(size=(length, width)) / 2
    weights = rng.normal(size=(3, width, columns)) / np.sqrt(width)
    return E, P, weights


# --- showing it ------------------------------------------------------------------------------


def table(rows, columns, values, colored=False, room=80):
    """Numbers with two decimals under `columns` and beside `rows`, in parts as wide as `room`.

    With colours, the darker a number's background, the larger it is. A weight of exactly 0 is a
    dot.
    """
    margin = max(map(len, rows))
    wide = max(5, *(len(name) for name in columns))
    fit = max(1, (room - margin) // (wide + 1))
    parts = []
    for start in range(0, len(columns), fit):
        part = slice(start, start + fit)
        names = "".join(f" {name:>{wide}}" for name in columns[part])
        lines = [" " * margin + names]
        for row, numbers in zip(rows, values[:, part], strict=True):
            cells = (cell(number, wide, colored) for number in numbers)
            lines.append(f"{row:>{margin}}" + "".join(cells))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def cell(number, wide, colored):
    text = f" {'.' if number == 0 else format(number, '.2f'):>{wide}}"
    if not colored:
        return text
    shade = 255 - int(20 * min(abs(number), 1))
    return f"\x1b[48;5;{shade}m\x1b[38;5;{16 if shade > 243 else 231}m{text}\x1b[0m"


def colors_wanted():
    """Whether the output is a terminal that is not asked to do without colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def save_picture(file, words, A):
    """A as a picture. Raises SystemExit without matplotlib, and where no file can be written."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("--picture needs matplotlib: pip install matplotlib") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    side = 1.5 + 0.55 * len(words)
    figure, axes = pyplot.subplots(figsize=(side + 1, side), layout="constrained")
    image = axes.imshow(A, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(words)), words, rotation=45)
    axes.set_yticks(range(len(words)), words)
    axes.set(xlabel="key: attended to", ylabel="query: attends", title="attention weights A")
    for (i, j), weight in np.ndenumerate(A):
        color = "white" if weight > 0.5 else "black"
        axes.text(j, i, f"{weight:.2f}", ha="center", va="center", color=color, fontsize=8)
    figure.colorbar(image, label="weight; each row sums to 1")
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise SystemExit(f"cannot save the picture: {error}") from None
    pyplot.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Attention among the words of a sentence.")
    parser.add_argument("sentence", nargs="?", default=SENTENCE)
    parser.add_argument("--causal", action="store_true", help="words see earlier words only")
    parser.add_argument("--picture", metavar="FILE", help="save A as PNG, PDF or SVG")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights")
    chosen = parser.parse_args(arguments)
    words, tokens, vocabulary = tokenized(chosen.sentence)
    if not words:
        parser.error("the sentence has no words")
    E, P, weights = drawn(vocabulary, len(words), width=8, columns=5, seed=chosen.seed)
    X = embedding(tokens, E, P)
    function = causal_attention if chosen.causal else attention
    results = function(X, *weights)
    A, C = results["A"], results["C"]

    room = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 80
    print("words      ", " ".join(words))
    print("token ids  ", " ".join(map(str, tokens)), f" of {len(vocabulary)} known words")
    print("X = E + P  ", X.shape, " tokens x width")
    print("Q, K, V    ", results["Q"].shape, " each")
    print()
    print("A: how much the word on the left attends to the word above; rows sum to 1")
    print(table(words, words, A, colors_wanted(), room))
    print()
    print("C: what each word takes along, the values of all weighted by its row of A")
    print(table(words, [f"c{j}" for j in range(C.shape[1])], C, room=room))
    if chosen.picture:
        save_picture(chosen.picture, words, A)
        print()
        print("A as a picture:", chosen.picture)


if __name__ == "__main__":
    main()
