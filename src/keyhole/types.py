"""The words of the design as frozen values: the public face of keyhole.model."""

from keyhole.model.epoch import START as START
from keyhole.model.epoch import Position as Position
from keyhole.model.epoch import Run as Run
from keyhole.model.read import Answer as Answer
from keyhole.model.read import Entries as Entries
from keyhole.model.read import Entry as Entry
from keyhole.model.read import ReadBounds as ReadBounds
from keyhole.model.read import Role as Role
from keyhole.model.read import Source as Source
from keyhole.model.read import Stale as Stale
from keyhole.model.state import LIST_POSITION as LIST_POSITION
from keyhole.model.state import KeyColumn as KeyColumn
from keyhole.model.state import KeyType as KeyType
from keyhole.model.state import StateDescriptor as StateDescriptor
from keyhole.model.state import StateKind as StateKind
from keyhole.model.state import TtlClock as TtlClock
from keyhole.model.state import ValueField as ValueField
from keyhole.model.state import ValueSchema as ValueSchema
