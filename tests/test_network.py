"""Judging contacts no other machine: every connection of a real run is watched, and none leaves this one.

A small library is put between Python, OpenVINO and the C library. It writes down each process that it
watches, each address that one wants to reach and each name that one looks up, and refuses what is not this
machine, so nothing is sent even where a test would fail.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

WATCHER = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void note(const char *what, const char *target)
{
    char line[512];
    int length = snprintf(line, sizeof line, "%s %s\n", what, target);
    int file = open(getenv("NETWORK_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || write(file, line, length) != length) abort();
    close(file);
}

__attribute__((constructor)) static void begin(void) { note("watched", program_invocation_short_name); }

/* Whether an address is on this machine; notes those that are not. */
static int here(const char *what, const struct sockaddr *address)
{
    char text[INET6_ADDRSTRLEN] = "?";
    if (address == NULL || address->sa_family == AF_UNIX || address->sa_family == AF_NETLINK
        || address->sa_family == AF_UNSPEC) return 1;
    if (address->sa_family == AF_INET) {
        const struct in_addr *in = &((const struct sockaddr_in *)address)->sin_addr;
        if ((ntohl(in->s_addr) >> 24) == 127) return 1;
        inet_ntop(AF_INET, in, text, sizeof text);
    } else if (address->sa_family == AF_INET6) {
        const struct in6_addr *in = &((const struct sockaddr_in6 *)address)->sin6_addr;
        if (IN6_IS_ADDR_LOOPBACK(in)) return 1;
        inet_ntop(AF_INET6, in, text, sizeof text);
    }
    note(what, text);
    errno = ENETUNREACH;
    return 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    return here("connect", address) ? REAL(connect)(fd, address, length) : -1;
}

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *address,
               socklen_t length)
{
    return here("sendto", address) ? REAL(sendto)(fd, data, size, flags, address, length) : -1;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    return here("sendmsg", message->msg_name) ? REAL(sendmsg)(fd, message, flags) : -1;
}

int sendmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags)
{
    for (unsigned int i = 0; i < count; i++)
        if (!here("sendmmsg", messages[i].msg_hdr.msg_name)) return -1;
    return REAL(sendmmsg)(fd, messages, count, flags);
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    struct in_addr in;
    struct in6_addr in6;
    int numeric = name && (inet_pton(AF_INET, name, &in) == 1 || inet_pton(AF_INET6, name, &in6) == 1);
    if (name == NULL || numeric || strcmp(name, "localhost") == 0)
        return REAL(getaddrinfo)(name, service, hints, found);
    note("lookup", name);
    return EAI_NONAME;
}

struct hostent *gethostbyname(const char *name)
{
    note("lookup", name);
    h_errno = HOST_NOT_FOUND;
    return NULL;
}

int gethostbyname_r(const char *name, struct hostent *into, char *room, size_t size, struct hostent **found,
                    int *error)
{
    note("lookup", name);
    *found = NULL;
    *error = HOST_NOT_FOUND;
    return ENOENT;
}
"""

SAMPLES = [
    {"question": "When does it close?", "context": "The museum closes at five.", "answer": "At five."},
    {"question": "Who pays?", "context": "Entry is free for children.", "answer": "Everybody pays."},
]


class Watch:
    """Runs programs under the watcher and tells what they tried to reach."""

    def __init__(self, folder: Path, model_folder: Path) -> None:
        source, self._library, self._log = folder / "watcher.c", folder / "watcher.so", folder / "log"
        source.write_text(WATCHER)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", self._library, source, "-ldl"],
            check=True,
        )
        # A home of its own for the runs that it stores, with the models of the usual one.
        (folder / "home").mkdir()
        (folder / "home" / "models").symlink_to(model_folder.parent, target_is_directory=True)
        self._environment = {
            **os.environ,
            "LD_PRELOAD": str(self._library),
            "NETWORK_LOG": str(self._log),
            "MAGISTRATE_HOME": str(folder / "home"),
        }

    def python(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], env=self._environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def seen(self) -> tuple[int, list[str]]:
        """How many processes were watched, and what they tried to reach."""
        lines = self._log.read_text().splitlines()
        tried = [line for line in lines if not line.startswith("watched ")]
        return len(lines) - len(tried), tried


@pytest.fixture
def watch(tmp_path: Path, model_folder: Path) -> Watch:
    return Watch(tmp_path, model_folder)


@pytest.mark.full
def test_a_run_by_both_judges_reaches_no_other_machine(watch: Watch, tmp_path: Path) -> None:
    data = tmp_path / "samples.jsonl"
    data.write_text("".join(json.dumps(sample) + "\n" for sample in SAMPLES))
    words = ["run", str(data), "--judge", "faithfulness", "--judge", "hallucination", "--json"]
    report = json.loads(watch.python("-m", "magistrate", *words))
    assert {name: judge["n_ok"] for name, judge in report["judges"].items()} == {
        "faithfulness": 2,
        "hallucination": 2,
    }
    watched, tried = watch.seen()
    assert watched >= 1
    assert tried == []


def test_one_judgement_reaches_no_other_machine(watch: Watch) -> None:
    words = ["judge", "--output", "It closes at six.", "--context", "It closes at five.", "--json"]
    assert json.loads(watch.python("-m", "magistrate", *words))["kind"] == "verdict"
    watched, tried = watch.seen()
    assert watched >= 1
    assert tried == []


# --- the watcher sees what it must see -----------------------------------------------------------

# Addresses that are set aside for documentation: nobody has them.
ATTEMPTS = """
import errno, socket, subprocess, sys
def refused(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno in (errno.ENETUNREACH, socket.EAI_NONAME), error
    else:
        raise AssertionError("it was not refused")
tcp, udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
tcp.setblocking(False)
refused(tcp.connect, ("192.0.2.1", 443))
refused(udp.sendto, b"x", ("192.0.2.2", 53))
refused(udp.sendmsg, [b"x"], [], 0, ("192.0.2.3", 53))
refused(socket.getaddrinfo, "somewhere.invalid", 443)
refused(socket.gethostbyname_ex, "elsewhere.invalid")
inner = "import socket; socket.socket().connect_ex(('192.0.2.4', 80))"
subprocess.run([sys.executable, "-c", inner], check=True)
"""


def test_what_would_leave_the_machine_is_written_down_also_of_children(watch: Watch) -> None:
    watch.python("-c", ATTEMPTS)
    assert watch.seen() == (
        2,
        [
            "connect 192.0.2.1",
            "sendto 192.0.2.2",
            "sendmsg 192.0.2.3",
            "lookup somewhere.invalid",
            "lookup elsewhere.invalid",
            "connect 192.0.2.4",
        ],
    )


def test_what_stays_on_the_machine_is_let_through(watch: Watch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('localhost', {port}), 10).sendall(b'hello')"
        watch.python("-c", code)
        connection, _ = server.accept()
        with connection:
            assert connection.recv(5) == b"hello"
    assert watch.seen() == (1, [])
