import errno
import fcntl

import pytest

from nein.engine.errors import UserError
from nein.train import record


def test_a_second_training_in_one_folder_is_refused(tmp_path):
    held = record._lock(tmp_path)
    try:
        with pytest.raises(UserError, match="Another command is at work"):
            record._lock(tmp_path)
    finally:
        held.release()


def test_a_file_system_that_cannot_lock_is_said_and_leaves_no_marker(tmp_path, monkeypatch):
    def no_locks(*arguments):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    for _ in range(2):  # the second time it must not be "another command is at work"
        with pytest.raises(UserError, match="file system that cannot lock files"):
            record._lock(tmp_path)
