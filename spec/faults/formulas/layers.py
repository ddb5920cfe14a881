"""Wrong formulas of linear layers with a bias, and of embeddings."""

from __future__ import annotations

from typing import Final

from qkvac.spec.faults.formulas.attention import rule, rules

BIASES: Final = (
    *(
        rule(f"{part}-bias-missing", f"the {part} bias left out", f"{part}-sum", "l")
        for part in ("query", "key", "value")
    ),
    rule("key-bias-of-queries", "the query bias for the keys", "key-sum", "l + bq"),
    rule("value-bias-of-keys", "the key bias for the values", "value-sum", "l + bk"),
    rules(
        *("query-key-biases-swapped", "query and key biases swapped"),
        {"query-sum": "l + bk", "key-sum": "l + bq"},
    ),
    rule("bias-negative", "a bias, or positions, subtracted", "sum", "l - r"),
    rule("bias-multiplied", "a product with a bias, or with positions, for a sum", "sum", "l * r"),
    rule(
        *("bias-on-first-row", "a bias, or positions, for the first token alone", "sum"),
        "l + only_first_row(l * 0 + r)",
    ),
    rule("bias-after-scale", "a query bias that is scaled beforehand", "query-sum", "l + r * s"),
    rules(
        *("value-bias-on-context", "the value bias added to C instead of V"),
        {"value-sum": "l", "context": "Y + bv"},
    ),
    rule("value-bias-on-context-too", "the value bias added to V and to C", "context", "Y + bv"),
)

POSITIONS: Final = (
    rule("positions-from-1", "positions counted from 1", "lookup", "l + first(next_row(p), n)"),
    rule(
        *("positions-from-last", "positions that start with the last", "lookup"),
        "l + first(previous_row(p), n)",
    ),
    rule("positions-reversed", "positions in reversed order", "lookup", "l + reversed_rows(r)"),
    rule(
        *("positions-from-end", "the last n positions instead of the first", "lookup"),
        "l + reversed_rows(first(reversed_rows(p), n))",
    ),
    rule("position-of-first-token", "position 0 for all tokens", "lookup", "l + first_row(r)"),
    rule("position-by-token", "the position of the token's number", "lookup", "l + cyclic(p, i)"),
    rule(
        *("position-of-first-occurrence", "the position at which a token occurs first", "lookup"),
        "l + cyclic(p, first_occurrence(i))",
    ),
    rule("position-columns-reversed", "columns of P reversed", "lookup", "l + reversed_columns(r)"),
    rule("positions-scaled", "positions multiplied by √d", "lookup", "l + r * sqrt(d)"),
    rule("positions-alone", "positions without tokens", "lookup", "r"),
    rule("tokens-scaled", "token embeddings multiplied by √d", "lookup", "l * sqrt(d) + r"),
    rule("embedding-scaled", "the sum multiplied by √d", "lookup", "Y * sqrt(d)"),
    rule("embedding-averaged", "the mean of token and position", "lookup", "Y / 2"),
)

TOKENS: Final = (
    rule("tokens-sorted", "tokens in ascending order", "lookup", "take(E, in_order(i)) + r"),
    rule(
        "tokens-off-by-one", "the row after each token's own", "lookup", "take(next_row(E), i) + r"
    ),
    rule(
        "tokens-of-reread-table",
        "a table of tokens read column by column",
        "lookup",
        "take(reread(E), i) + r",
    ),
    rule("tokens-bucketed", "tokens that share half of the table", "lookup", "bucketed(E, i) + r"),
    rule(
        *("last-row-for-rare-tokens", "the last row for tokens of the table's second half"),
        *("lookup", "last_for_rare(E, i) + r"),
    ),
    rule("padding-token-zeroed", "zeros for token 0", "lookup", "padding_zeroed(E, i) + r"),
    rule(
        "tables-swapped",
        "tokens and positions taken from each other's table",
        "lookup",
        "cyclic(p, i) + first(E, n)",
    ),
    rule(
        *("first-sample-tokens", "the first sample's tokens for all", "lookup"),
        "take(E, first_sample(i)) + r",
    ),
)

LAYERS: Final = (*BIASES, *POSITIONS, *TOKENS)
