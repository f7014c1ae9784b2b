"""Files of credentials."""

from __future__ import annotations

import os
import stat

import pytest

from cerebras_tf.address.credentials import Credentials, load_credentials
from cerebras_tf.errors import ConfigError


def test_only_the_servers_file_has_the_private_key(files):
    client, server = files
    assert b"PRIVATE KEY" not in client.read_bytes()
    one, other = load_credentials(client), load_credentials(server, serves=True)
    assert (one.certificate, one.token) == (other.certificate, other.token)
    assert other.key is not None and one.fingerprint == other.fingerprint
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in files} == {0o600}
    with pytest.raises(ConfigError, match="of the server.*without a valid PRIVATE KEY"):
        load_credentials(client, serves=True)


def test_a_file_that_others_may_read_is_refused(files, tmp_path):
    path = tmp_path / "open.pem"
    path.write_bytes(files[0].read_bytes())
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="mode 0640.*chmod 600"):
        load_credentials(path)
    path.chmod(0o600)
    path.write_text("anything")
    with pytest.raises(ConfigError, match="CERTIFICATE, CEREBRAS TF TOKEN"):
        load_credentials(path)


def test_files_are_not_replaced(files):
    from cerebras_tf.address.credentials import new_credentials

    with pytest.raises(ConfigError, match="are not replaced"):
        new_credentials(*files)


def test_a_token_is_accepted_whole():
    own = Credentials(b"", "token")
    assert own.accepts("Bearer token")
    assert not any(map(own.accepts, ("", "Bearer ", "bearer token", "Bearer token ", "token")))
