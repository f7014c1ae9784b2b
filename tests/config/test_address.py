"""Tests of config/address.py: what addresses mean, and what is found at one."""

from __future__ import annotations

import socket

import pytest

from cerebras_tf.config.address import (
    address_problem,
    check_wafer_address,
    is_in_process,
    normalize_cs_ip,
)
from cerebras_tf.errors import ConfigError, SystemUnreachableError
from tests.messages import names

IN_PROCESS = (
    *(None, "", "  ", "127.0.0.1", "127.0.0.1:9000", "127.3.2.1", "localhost", "localhost:9000"),
    *("::1", "[::1]", "[::1]:9000"),
)
ELSEWHERE = ("10.1.2.3", "127.0.0.1:9001", "wafer.example", "0.0.0.0")


@pytest.mark.parametrize("cs_ip", IN_PROCESS)
def test_empty_and_loopback_addresses_mean_the_wafer_in_this_process(cs_ip):
    assert is_in_process(cs_ip)
    check_wafer_address(cs_ip)


@pytest.mark.parametrize("cs_ip", ELSEWHERE)
def test_other_addresses_do_not_mean_the_wafer_in_this_process(cs_ip):
    assert not is_in_process(cs_ip)


@pytest.mark.parametrize(
    "cs_ip,expected",
    [("10.1.2.3", "10.1.2.3:9000"), ("host:77", "host:77"), ("fe80::1", "[fe80::1]:9000")],
)
def test_normalize_appends_the_wafers_port_where_none_is_given(cs_ip, expected):
    assert normalize_cs_ip(cs_ip) == expected
    assert normalize_cs_ip(expected) == expected


@pytest.mark.parametrize(
    "cs_ip", ["host:", "host:abc", "host:0", "host:70000", ":9000", "[::1]x", "[::1"]
)
def test_a_malformed_address_is_refused(cs_ip):
    assert address_problem(cs_ip)
    with pytest.raises(ConfigError) as error:
        normalize_cs_ip(cs_ip)
    assert names(error.value, "cs_ip", "HOST:PORT", f"Received: {cs_ip!r}")


def test_what_is_found_at_an_address_is_reported(monkeypatch):
    with socket.socket() as holder:  # bound but not listening: connections are refused
        holder.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(SystemUnreachableError) as error:
            check_wafer_address(address)
        assert names(error.value, address, "nothing answers")
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(SystemUnreachableError) as error:
            check_wafer_address(f"127.0.0.1:{server.getsockname()[1]}")
        assert names(error.value, "something listens")

    def unknown(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(SystemUnreachableError) as error:
        check_wafer_address("wafer.invalid")
    assert names(error.value, "'wafer.invalid' is not known")


@pytest.mark.parametrize("host", ["a..b", ".", "x" * 64, "a" * 300])
def test_names_that_no_host_can_have_are_not_known(host):
    with pytest.raises(SystemUnreachableError) as error:
        check_wafer_address(host)
    assert names(error.value, f"{host!r} is not known")
