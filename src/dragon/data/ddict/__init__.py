"""The distributed dictionary."""

from dragon.data.ddict.creation import (
    DDICT_MIN_SIZE,
    CheckpointPersister,
    DAOSCheckpointPersister,
    NULLCheckpointPersister,
    PosixCheckpointPersister,
)
from dragon.data.ddict.ddict import DDict
from dragon.data.ddict.handle import DDictManagerStats
from dragon.data.ddict.profile import DDictOperationProfile
from dragon.data.ddict.views import (
    DDictItemsView,
    DDictKeysView,
    DDictMappingProxy,
    DDictValuesView,
    FilterContextManager,
    FilterIterator,
    SentinelQueue,
)
from dragon.infrastructure.ddict_errors import (
    DDictCheckpointSyncError,
    DDictError,
    DDictFullError,
    DDictFutureCheckpointError,
    DDictKeyError,
    DDictPersistCheckpointError,
    DDictSyncError,
    DDictTimeoutError,
    DDictUnableToCreateError,
)
from dragon.runtime.picklers import strip_pickled_bytes

__all__ = [
    "DDICT_MIN_SIZE",
    "CheckpointPersister",
    "DAOSCheckpointPersister",
    "DDict",
    "DDictCheckpointSyncError",
    "DDictError",
    "DDictFullError",
    "DDictFutureCheckpointError",
    "DDictItemsView",
    "DDictKeyError",
    "DDictKeysView",
    "DDictManagerStats",
    "DDictMappingProxy",
    "DDictOperationProfile",
    "DDictPersistCheckpointError",
    "DDictSyncError",
    "DDictTimeoutError",
    "DDictUnableToCreateError",
    "DDictValuesView",
    "FilterContextManager",
    "FilterIterator",
    "NULLCheckpointPersister",
    "PosixCheckpointPersister",
    "SentinelQueue",
    "strip_pickled_bytes",
]
