"""`nerfacc.losses`: the distortion loss. The same in 0.2 and 0.3."""

from raymine.compat.nerfacc_v03.losses import distortion as distortion
