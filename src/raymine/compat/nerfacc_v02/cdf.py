"""`nerfacc.cdf`: resampling of rays by their weights. The same in 0.2 and 0.3."""

from raymine.compat.nerfacc_v03.cdf import ray_resampling as ray_resampling
