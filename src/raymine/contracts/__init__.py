"""Records and protocols that modules share, and the letters that name tensor dimensions.

Dimensions, as used in every signature and docstring:

    R  rays of a batch              B  samples of a batch, packed (all rays end to end)
    b  samples selected to train    K  candidate steps along a ray
    L  resolution levels of a grid  F  features per grid entry
    G  occupancy levels (nested boxes, each twice the one before)
    n  points in general            C  image channels
    H, W  image height and width    I  images

Conventions: distances are in world units after normalisation; colours are in 0..1; directions are unit length; a pose
is camera-to-world with x right, y up, z backward (see `raymine.cameras`, which owns every conversion). Packed samples
lie ray by ray: ray r owns rows `first[r] : first[r] + count[r]`, ordered by distance.
"""

from .parts import ALL_RAYS as ALL_RAYS
from .parts import NO_TARGETS as NO_TARGETS
from .parts import DensityConfig as DensityConfig
from .parts import DensityField as DensityField
from .parts import EstimatesMemory as EstimatesMemory
from .parts import FadesLevels as FadesLevels
from .parts import Field as Field
from .parts import FieldConfig as FieldConfig
from .parts import Group as Group
from .parts import HasActivations as HasActivations
from .parts import HasVariation as HasVariation
from .parts import ImageSource as ImageSource
from .parts import KeepsFeatures as KeepsFeatures
from .parts import LossView as LossView
from .parts import Memory as Memory
from .parts import ParameterView as ParameterView
from .parts import Part as Part
from .parts import PreparesField as PreparesField
from .parts import PreparesStep as PreparesStep
from .parts import PullsBack as PullsBack
from .parts import RayShare as RayShare
from .parts import Reads as Reads
from .parts import ReadsRows as ReadsRows
from .parts import Renderer as Renderer
from .parts import RendersRays as RendersRays
from .parts import Sampler as Sampler
from .parts import SamplerConfig as SamplerConfig
from .parts import Scalars as Scalars
from .parts import SeesAlongRays as SeesAlongRays
from .parts import Targets as Targets
from .parts import Term as Term
from .parts import activations_of as activations_of
from .parts import targets_of as targets_of
from .records import Draws as Draws
from .records import FieldInput as FieldInput
from .records import FieldOutput as FieldOutput
from .records import LossReport as LossReport
from .records import Rays as Rays
from .records import RayScale as RayScale
from .records import Rendered as Rendered
from .records import Round as Round
from .records import Rounds as Rounds
from .records import Samples as Samples
from .records import Selection as Selection
from .records import StepReport as StepReport
from .scene import Bounds as Bounds
from .scene import Camera as Camera
from .scene import CameraModel as CameraModel
from .scene import Frame as Frame
from .scene import Scene as Scene
from .scene import Split as Split
