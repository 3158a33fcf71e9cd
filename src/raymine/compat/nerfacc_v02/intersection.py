"""`nerfacc.intersection`: rays against one box. The same in 0.2 and 0.3."""

from raymine.compat.nerfacc_v03.intersection import ray_aabb_intersect as ray_aabb_intersect
