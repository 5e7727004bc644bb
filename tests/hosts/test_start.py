"""Options that do not fit, and processes that do not come, are messages within the time limit."""

import socket
import threading
import time

import pytest

from grpo_jax import hosts
from grpo_jax.hosts.meeting import meet
from tests.hosts.processes import free_port

HERE = "127.0.0.1:1234"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coordinator": HERE}, "--hosts.count and --hosts.index is missing"),
        ({"count": 2, "index": 0}, "--hosts.coordinator is missing"),
        ({"coordinator": HERE, "count": 2, "index": 0, "detect": True}, "leave those out, or it"),
        ({"coordinator": HERE, "count": 2, "index": 2}, "--hosts.index 2 of --hosts.count 2: give 0 to 1"),
        ({"coordinator": HERE, "count": 2, "index": -1}, "--hosts.index -1 of"),
        ({"coordinator": HERE, "count": 0, "index": 0}, "--hosts.count 0: give at least 1"),
        ({"coordinator": "10.0.0.1", "count": 2, "index": 0}, "give an address and a port"),
        ({"coordinator": "10.0.0.1:http", "count": 2, "index": 0}, "give an address and a port"),
        ({"coordinator": "10.0.0.1:99999", "count": 2, "index": 0}, "give an address and a port"),
        ({"timeout": 0}, "--hosts.timeout 0: give at least 1 second"),
        ({"heartbeat": 0}, "--hosts.heartbeat 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        hosts.start(hosts.Hosts(**options))


def test_without_options_a_run_is_one_process():
    with hosts.started(hosts.Hosts()):
        assert (hosts.count(), hosts.index(), hosts.is_writer()) == (1, 0, True)
        assert hosts.exchange(b"alone") == [b"alone"]
        assert hosts.from_writer(lambda: (1, 2)) == (1, 2)
        with pytest.raises(KeyError, match="own error"), hosts.together():
            raise KeyError("own error")


def meeting(*visits, seconds=2.0):
    """What comes of processes that meet: the errors, in their order; None where one got through."""
    address, found = f"127.0.0.1:{free_port()}", [None] * len(visits)

    def visit(number, index, count):
        try:
            meet(address, index, count, seconds)
        except (OSError, ValueError) as error:
            found[number] = error

    threads = [threading.Thread(target=visit, args=(number, *each)) for number, each in enumerate(visits)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_processes_that_are_all_there_meet():
    assert meeting((2, 3), (0, 3), (1, 3), seconds=20) == [None, None, None]


def test_those_who_do_not_come_are_named_to_those_who_did():
    for error in meeting((0, 4), (2, 4)):
        assert "of 4 hosts, 1, 3 did not come to 127.0.0.1:" in str(error)


def test_nobody_at_the_address_is_said_in_time():
    began = time.monotonic()
    (error,) = meeting((1, 2), seconds=1.0)
    assert isinstance(error, TimeoutError)
    assert "nobody answers at 127.0.0.1:" in str(error)
    assert time.monotonic() - began < 10


def test_another_count_is_named():
    for error in meeting((0, 2), (1, 3), seconds=20):
        assert str(error) == "host 1 was told of 3 hosts, host 0 of 2: give all the same --hosts.count"


def test_two_processes_with_one_number_are_told():
    first, one, other = meeting((0, 3), (1, 3), (1, 3), seconds=20)
    assert str(first) == str(one) == str(other) == "two processes are host 1 of 3: give each another --hosts.index"


def test_a_port_in_use_is_named():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"host 0 cannot listen at port {port} .*: free it"):
            meet(f"127.0.0.1:{port}", 0, 2, 1.0)


def test_strangers_at_the_port_are_sent_away():
    address, found = f"127.0.0.1:{free_port()}", []
    waiting = threading.Thread(target=lambda: found.append(meet(address, 0, 2, 20.0)))
    waiting.start()
    while True:
        try:
            with socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])), 5) as stranger:
                stranger.sendall(b"GET / HTTP/1.0\n")
                assert stranger.recv(10) == b""
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    meet(address, 1, 2, 20.0)
    waiting.join(30)
    assert found == [None]
