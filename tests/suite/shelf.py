"""The shelf: ports that are wrong in one way each, what must catch them, and correct ones.

A fault that no case exposes, and a correct variant that some case rejects, are both defects of the
suite. Each faulty port therefore names what it has to be caught by, and nothing that comes before
its fault may be blamed. The ports lie in `ports/`, one small file each.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qkvac.spec.verdicts import clauses

PORTS: Final = Path(__file__).parent / "ports"


@dataclass(frozen=True)
class Port:
    """A port on the shelf, by the name of its file."""

    name: str

    @property
    def path(self) -> Path:
        return PORTS / f"{self.name}.py"

    @property
    def about(self) -> str:
        """What is special about it, in a sentence: its docstring."""
        return ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or ""


@dataclass(frozen=True)
class Faulty(Port):
    """A wrong port, the dtype to run it in, and what it must be caught by.

    `caught` maps quantities or checks to letters of clauses or statuses, all of which have to
    occur. No quantity before the first one named may fail; where only checks are named, none may.
    """

    dtype: str
    caught: Mapping[str, str]

    @property
    def demands(self) -> frozenset[tuple[str, str]]:
        """Pairs of a quantity or check and the word of a clause, or a status."""
        return frozenset(
            (where, clauses.word(what))
            for where, words in self.caught.items()
            for what in words.split()
        )


@dataclass(frozen=True)
class Correct(Port):
    """A right port that computes in its own way, and the dtypes to run it in."""

    dtypes: tuple[str, ...] = ("float32", "float64")


def _structure(name: str, **caught: str) -> Faulty:
    return Faulty(name, "float32", caught)


STRUCTURE: Final = (
    _structure("softmax_down_columns", A="L", C="B"),
    _structure("scores_not_scaled", A="L", C="B"),
    _structure("scaled_by_token_width", A="L", C="B"),
    _structure("scaled_by_length", A="L", C="B"),
    _structure("scaled_by_width", A="L", C="B"),
    _structure("scaled_up", A="L", C="B"),
    _structure("scaled_by_whole_root", A="L", C="B"),
    _structure("scaled_by_an_eighth", A="L", C="B"),
    _structure("scores_transposed", Ω="E L", A="B", C="B"),
    _structure("query_weights_transposed", Q="E", Ω="E"),
    _structure("key_weights_transposed", K="E", Ω="E"),
    _structure("value_weights_transposed", V="E", C="B"),
    _structure("queries_and_keys_swapped", Q="E B", K="E B"),
    _structure("keys_from_query_weights", K="E B"),
    _structure("values_from_key_weights", V="E B"),
    _structure("values_not_projected", V="E B"),
    _structure("context_of_transposed_weights", C="L"),
    _structure("residual_added", C="L"),
    _structure("not_normalised", A="L", C="B"),
    _structure("softmax_with_a_sink", A="L", C="B"),
    _structure("base_two", A="L", C="B"),
    _structure("own_token_excluded", A="L contract"),
    _structure("causal_unasked", A="L", C="B"),
    _structure("absolute_scores", Ω="E L"),
    _structure("scores_capped", A="L"),
    _structure("maximum_of_columns", A="L"),
    _structure("padded_keys_counted", A="L"),
    _structure("tail_keys_dropped", A="L"),
    _structure("queries_and_keys_normalised", Ω="E L"),
    _structure("distance_penalised", A="L"),
    _structure("best_key_only", A="L"),
    _structure("first_query_for_all", A="L"),
)
"""Another formula: found in any dtype, so the cheapest one is taken."""

NUMERICS: Final = (
    Faulty("no_maximum", "float32", {"A": "contract", "C": "contract"}),
    Faulty("maximum_of_everything", "float32", {"A": "contract"}),
    Faulty("maximum_of_first_query", "float32", {"A": "contract"}),
    Faulty("maximum_from_zero", "float32", {"A": "contract"}),
    Faulty("epsilon_in_denominator", "float32", {"A": "E", "C": "E"}),
    Faulty("small_epsilon_in_denominator", "float64", {"A": "E L", "C": "E B"}),
    Faulty("epsilon_in_scale", "float64", {"A": "L", "C": "B"}),
    Faulty("bfloat16_scale", "float32", {"A": "L"}),
    Faulty("float32_scale", "float64", {"A": "L", "C": "B"}),
    Faulty("float32_softmax", "float64", {"A": "L", "C": "B"}),
    Faulty("float32_inside", "float64", {"Q": "E B", "C": "B"}),
    Faulty("tensor_float_products", "float32", {"Q": "E B", "Ω": "E L", "C": "L"}),
    Faulty("tensor_float_scores", "float32", {"Ω": "E L"}),
    Faulty("tensor_float_context", "float32", {"C": "L"}),
    Faulty("tensor_float_on_tiles", "float32", {"Q": "E", "Ω": "L", "C": "L"}),
    Faulty("bfloat16_pairs", "float32", {"Q": "E B", "Ω": "E L", "C": "L"}),
    Faulty("bfloat16_accumulation", "float32", {"Q": "E B", "Ω": "E L", "C": "L"}),
    Faulty("float16_accumulation", "float32", {"Q": "E B", "Ω": "E L", "C": "L"}),
    Faulty("strassen_products", "float32", {"Q": "E B", "Ω": "L"}),
    Faulty("bfloat16_cache", "float32", {"Ω": "E L", "C": "L"}),
    Faulty("float16_softmax", "float32", {"A": "L"}),
    Faulty("float16_weights", "float32", {"C": "L"}),
    Faulty("cubic_exponential", "float32", {"A": "L"}),
    Faulty("quintic_exponential", "float64", {"A": "L", "C": "B"}),
    Faulty("exponential_by_exponent_field", "float32", {"A": "L"}),
    Faulty("exponential_by_compounding", "float32", {"A": "L"}),
    Faulty("exponent_clamped_at_20", "float32", {"A": "E L"}),
    Faulty("exponent_clamped_at_80", "float32", {"A": "E L"}),
    Faulty("short_reciprocal", "float32", {"A": "L"}),
    Faulty("small_weights_dropped", "float32", {"A": "L"}),
    Faulty("flash_context_not_rescaled", "float32", {"C": "L"}),
    Faulty("flash_sum_not_rescaled", "float32", {"C": "L"}),
    Faulty("sum_in_bfloat16", "bfloat16", {"A": "L", "C": "B"}),
)
"""The right formula in poor arithmetic, in the dtype that shows it."""

BEHAVIOUR: Final = (
    Faulty("float64_returned", "float32", {"C": "contract"}),
    Faulty("float32_from_bfloat16", "bfloat16", {"Q": "contract"}),
    Faulty("context_transposed", "float32", {"C": "contract L"}),
    Faulty("batch_axis_added", "float32", {"Q": "contract", "C": "contract"}),
    Faulty("context_missing", "float32", {"C": "missing"}),
    Faulty("context_before_weights", "float32", {"A": "contract L", "C": "contract L"}),
    Faulty("zeros_returned", "float32", {"Q": "E B", "A": "L", "C": "B"}),
    Faulty("nan_for_one_token", "float32", {"C": "contract"}),
    Faulty("zero_for_one_token", "float32", {"C": "L"}),
    Faulty("no_tokens_refused", "float32", {"Q": "error"}),
    Faulty("no_tokens_flattened", "float32", {"C": "contract"}),
    Faulty("weights_scaled_in_place", "float32", {"unchanged": "M"}),
    Faulty("input_borrowed", "float32", {"Q": "error"}),
    Faulty("fortran_order_misread", "float32", {"Q": "E B"}),
    Faulty("steps_ignored", "float32", {"Q": "contract"}),
    Faulty("stale_cache", "float32", {"Q": "E B", "state": "M"}),
    Faulty("order_remembered", "float32", {"state": "M"}),
    Faulty("order_random", "float32", {"repeat": "M"}),
    Faulty("dropout_left_on", "float32", {"A": "L", "repeat": "M"}),
    Faulty("buffer_reused", "float32", {"state": "M"}),
    Faulty("path_by_magnitude", "float32", {"scaling": "M"}),
    Faulty("context_rounded_down", "float32", {"signs": "M"}),
    Faulty("subnormals_left_flushed", "float32", {"environment": "M"}),
    Faulty("rounding_left_upward", "float32", {"environment": "M"}),
    Faulty("crashes_on_one_token", "float32", {"Q": "crash"}),
    Faulty("hangs_on_one_token", "float32", {"Q": "timeout"}),
    Faulty("raises_on_one_token", "float32", {"Q": "error"}),
)
"""The right numbers, mostly, from a function that misbehaves."""

HEADED: Final = (
    _structure("masked_scores_at_1e4", A="L"),
    _structure("mask_inverted", A="L", C="B"),
    _structure("mask_of_first_query", A="L"),
    _structure("mask_without_triangle", A="L"),
    _structure("mask_axes_collide", Ω="error", A="L"),
    _structure("triangle_at_last_key", A="L"),
    _structure("triangle_strict", A="L"),
    _structure("heads_tiled", Ω="B"),
    _structure("scale_not_heeded", A="L"),
    _structure("empty_row_undefined", A="contract", C="contract"),
    _structure("bias_scaled", A="L"),
    _structure("heads_by_reshape", Ω="L"),
    _structure("merged_by_reshape", C="L"),
    _structure("scaled_by_all_heads", A="L"),
    _structure("output_of_first_head", Y="L"),
    _structure("positions_from_one", X="E B"),
    _structure("tokens_sorted", X="E B"),
)
"""Other profiles: masks, heads, scales, and tables of embeddings."""

BACKWARD: Final = (
    _structure("gradient_softmax_as_a_product", dX="B", dWq="B", dWk="B"),
    _structure("gradient_scale_forgotten", dX="B", dWq="B", dWk="B"),
    _structure("gradient_stopped_at_keys", dX="B", dWk="B"),
    _structure("gradient_path_forgotten", dX="B"),
    _structure("gradient_not_set_to_zero", dX="B", repeat="M"),
    _structure("gradient_averaged_over_samples", dWq="B", dWk="B", dWv="B"),
    _structure("gradient_of_a_sum", dX="B", dWv="B"),
    _structure("gradient_cotangent_in_memory_order", dX="B", dWv="B"),
    _structure("gradient_left_out", dWv="missing"),
    _structure("gradient_bfloat16_weights", dX="B", dWq="B", dWv="B"),
    _structure("gradient_overwrites_duplicates", dE="E B"),
    _structure("gradient_of_masks_zero", dmask="B"),
)
"""Gradients that are wrong where the forward pass is right."""

FAULTY: Final = (*STRUCTURE, *NUMERICS, *BEHAVIOUR, *HEADED, *BACKWARD)

CORRECT: Final = (
    Correct("correct_plain", ("float64", "float32", "bfloat16", "float16")),
    Correct("correct_tensor_float_declared", ("float32",)),
    *(
        Correct(f"correct_{name}")
        for name in (
            *("flash_1", "flash_13", "flash_16", "two_paths", "normalised_last"),
            *("weights_from_logsumexp", "reciprocal", "base_two_exponential"),
            *("reversed_sums", "sequential_sums", "pairwise_sums", "float64_inside"),
            *("scale_in_queries", "root_of_scale_on_both", "divided_by_root"),
            *("fused_weights", "einsum", "token_loop"),
            *("context_only", "odd_arrays", "talkative", "flushing_declared"),
        )
    ),
    Correct("correct_heads", ("float64", "float32", "bfloat16", "float16")),
    *(
        Correct(f"correct_{name}", ("float32",))
        for name in (
            *("heads_lowest_then_zero", "heads_flash", "heads_loops", "heads_grouped_queries"),
            *("heads_base_two", "heads_mask_as_bias", "layers_fused"),
            "no_weights",
        )
    ),
    Correct("correct_gradients"),
    Correct("correct_gradients_recomputed"),
)
