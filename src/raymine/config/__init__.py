"""The config of a run as frozen dataclasses, its exact JSON form, and differences between configs."""

from .codec import differences as differences
from .codec import digest as digest
from .codec import from_json as from_json
from .codec import replace_fields as replace_fields
from .codec import to_json as to_json
from .run import Every as Every
from .run import InitFrom as InitFrom
from .run import RunConfig as RunConfig
from .run import Schedule as Schedule
from .run import identity as identity
from .run import keep_earlier_digests as keep_earlier_digests
from .run import model_digest as model_digest
from .run import model_digests as model_digests
from .run import require_seconds as require_seconds
from .run import require_steps as require_steps
from .types import ForeignTypeError as ForeignTypeError
from .types import allowing as allowing
from .types import packages_to_allow as packages_to_allow
