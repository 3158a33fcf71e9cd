"""Export of novel views: camera paths, frames and video."""

from .curves import interpolate_poses as interpolate_poses
from .frames import Abandoned as Abandoned
from .frames import FramePictures as FramePictures
from .frames import View as View
from .frames import render_path as render_path
from .frames import render_view as render_view
from .path_file import from_file as from_file
from .path_file import to_file as to_file
from .paths import CameraPath as CameraPath
from .paths import at_time as at_time
from .paths import forward_facing as forward_facing
from .paths import novel_camera as novel_camera
from .paths import orbit as orbit
from .paths import spiral as spiral
from .paths import still as still
from .paths import with_fov as with_fov
from .video import write_frames as write_frames
from .video import write_mp4 as write_mp4
from .video import write_videos as write_videos
