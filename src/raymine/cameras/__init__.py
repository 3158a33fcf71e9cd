"""Camera conventions: every conversion of poses, lenses and pixels in raymine is defined here.

raymine's convention, to which every reader converts: a pose is camera-to-world [3, 4] with x to the right of the
picture, y up and z backward (the camera looks along -z). Pixel coordinates are continuous, x to the right and y down,
and the centre of the first pixel is (0.5, 0.5). `poses` converts poses, `worlds` goes between the scene's own and
the normalised world, `lens` has the distortion models, and `projection` maps points to pixels and pixels to directions.
`rigid` has small motions of cameras as six numbers, and `alignment` compares two sets of poses.
"""

from __future__ import annotations

from .alignment import align_poses, pose_errors
from .lens import distort_fisheye, distort_opencv, undistort_fisheye, undistort_opencv
from .poses import (
    apply_similarity,
    from_colmap,
    from_llff,
    from_opencv,
    look_at,
    matrix_to_quaternion,
    pose_fault,
    quaternion_to_matrix,
    similarity,
    to_colmap,
    to_llff,
    turn_clockwise,
)
from .projection import CameraTable, camera_directions, field_of_view, lens_coverage, project, unproject
from .rigid import exp_se3
from .worlds import from_normalised, to_normalised

__all__ = [
    "CameraTable",
    "align_poses",
    "apply_similarity",
    "camera_directions",
    "distort_fisheye",
    "distort_opencv",
    "exp_se3",
    "field_of_view",
    "from_colmap",
    "from_llff",
    "from_normalised",
    "from_opencv",
    "lens_coverage",
    "look_at",
    "matrix_to_quaternion",
    "pose_errors",
    "pose_fault",
    "project",
    "quaternion_to_matrix",
    "similarity",
    "to_colmap",
    "to_llff",
    "to_normalised",
    "turn_clockwise",
    "undistort_fisheye",
    "undistort_opencv",
    "unproject",
]
