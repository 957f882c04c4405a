"""trl's private methods that `CustomerTrainer` overrides: a test holds them to the trl that is installed."""

from collections.abc import Mapping

OVERRIDDEN: Mapping[str, tuple[str, ...]] = {
    "_tokenize_prompts": ("prompts",),
    "_generate_single_turn": (
        "prompt_ids",
        "images",
        "multimodal_fields",
        "num_generations",
        "has_tool_images",
    ),
    "_tool_call_loop": (
        "prompts",
        "prompt_ids",
        "completion_ids",
        "completions",
        "logprobs",
        "images",
        "multimodal_fields",
    ),
    "_generate_and_score_completions": ("inputs",),
    "_get_per_token_logps_and_entropies": (
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
        "compute_aux_loss",
        "pixel_values",
        "image_grid_thw",
        "num_images",
        "pixel_attention_mask",
        "spatial_shapes",
        "num_tiles",
        "image_sizes",
        "token_type_ids",
        "mm_token_type_ids",
        "image_position_ids",
    ),
}
"""trl's private methods that are overridden, and the parameters they must have."""
