"""`nerfacc.cuda`: of the compiled functions, the one that makes contraction types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raymine.compat._standin import refusing
from raymine.compat.nerfacc_v03.contraction import ContractionType
from raymine.errors import ConfigError


def ContractionTypeGetter(value: int) -> ContractionType:
    """The contraction type of a number: 0 AABB, 1 UN_BOUNDED_TANH, 2 UN_BOUNDED_SPHERE."""
    try:
        return ContractionType(value)
    except ValueError:
        raise ConfigError(f"`value` must be 0, 1 or 2, got {value!r}.") from None


_COMPILED = "is a compiled function, which is not served. Call the function of `nerfacc` that uses it."

if not TYPE_CHECKING:
    __getattr__ = refusing(
        "nerfacc.cuda",
        __name__,
        dict.fromkeys(
            (
                "contract", "contract_inv", "grid_query", "is_cub_available", "ray_aabb_intersect", "ray_marching",
                "ray_resampling", "rendering_alphas_backward", "rendering_alphas_forward", "rendering_backward",
                "rendering_forward", "transmittance_from_alpha_backward_cub", "transmittance_from_alpha_backward_naive",
                "transmittance_from_alpha_forward_cub", "transmittance_from_alpha_forward_naive",
                "transmittance_from_sigma_backward_cub", "transmittance_from_sigma_backward_naive",
                "transmittance_from_sigma_forward_cub", "transmittance_from_sigma_forward_naive", "unpack_data",
                "unpack_info", "unpack_info_to_mask", "weight_from_alpha_backward_naive",
                "weight_from_alpha_forward_naive", "weight_from_sigma_backward_naive",
                "weight_from_sigma_forward_naive",
            ),
            _COMPILED,
        ),
    )  # fmt: skip
