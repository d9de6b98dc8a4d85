"""The bridge at a real mosquitto: what it says, how it comes back, and what it notices."""

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import subprocess
from pathlib import Path
from random import Random

import pytest

from specd.config.mqtt import MqttSection
from specd.errors import UserError
from specd.mqtt.bridge import NotPublishedError, Patience
from specd.mqtt.settings import read_settings
from tests.daemon.bridge_rig import QUICK, Rig, bridged, told
from tests.daemon.conftest import until
from tests.daemon.mosquitto import Mosquitto, Spy, needs_mosquitto, spying

pytestmark = needs_mosquitto

AVAILABILITY, STATE, TARGET, ALERTS = (
    f"specd/n1/{name}" for name in ("availability", "state", "target", "alerts")
)
RELOAD = "specd/n1/cmd/reload"


def sessions(spy: Spy) -> list[str]:
    """Of what was said of the node's availability."""
    return [
        dict(one.properties.UserProperty)["session"] for one in spy.heard if str(one.topic) == AVAILABILITY
    ]


async def test_who_comes_later_reads_what_is_retained(broker):
    """Test that availability, state and target wait for a subscriber, and that the goodbye is retained too."""
    async with bridged(broker) as rig:
        async with spying(broker) as spy:
            await spy.until(lambda spy: spy.at(STATE) and spy.at(TARGET))
            assert spy.at(AVAILABILITY) == ["online"]
            assert spy.at(TARGET) == [rig.now.target]
            assert spy.at(STATE) == [{**rig.now.state, "state_seconds": rig.section.state_seconds}]
            assert all(message.retain and message.qos == 1 for message in spy.heard)
        assert rig.registry.get_sample_value("specd_mqtt_connected") == 1
    async with spying(broker) as spy:
        await spy.until(lambda spy: spy.at(AVAILABILITY) == ["offline"])


async def test_news_are_told_and_noise_is_not(broker):
    """Test that what moves a little is not published, and that the target follows its own changes only."""
    async with bridged(broker, state_seconds=1000) as rig, spying(broker) as spy:
        await spy.until(lambda spy: spy.at(STATE) and spy.at(TARGET))
        rig.now, seen = told(acceptance={"chat": 0.61}, running=9, time=1.0), rig.looks
        await until(lambda: rig.looks >= seen + 2)
        rig.now = told(load="off")
        await spy.until(lambda spy: spy.at(STATE)[-1]["load"] == "off")
        assert (len(spy.at(STATE)), len(spy.at(TARGET))) == (2, 1)
        rig.now = told(load="off", target_revision="t2")
        await spy.until(lambda spy: spy.at(TARGET)[-1]["target_revision"] == "t2")


async def test_all_is_said_again_now_and_then(broker):
    """Test that without any change state and target are published every `state_seconds`."""
    async with bridged(broker, state_seconds=0.1), spying(broker) as spy:
        await spy.until(lambda spy: len(spy.at(STATE)) >= 3 and len(spy.at(TARGET)) >= 3)


async def test_a_restarted_broker_is_told_everything_anew(broker):
    """Test that a lost connection is noticed without anything to say, and that a broker that has forgotten what was
    retained gets it again, from a new session.
    """
    async with bridged(broker) as rig:
        async with spying(broker) as spy:
            await spy.until(lambda spy: spy.at(STATE))
            before = sessions(spy)
        broker.close()
        await until(lambda: rig.losses("lost") == 1 and rig.losses("unreachable") > 0)
        assert not rig.connected
        assert "refused" in rig.bridge.status()["trouble"].lower()
        with pytest.raises(NotPublishedError):
            await rig.bridge.publish_alert(b"{}")
        broker.start()
        await until(lambda: rig.connected)
        async with spying(broker) as spy:
            await spy.until(lambda spy: spy.at(STATE) and spy.at(TARGET))
            assert spy.at(AVAILABILITY) == ["online"]
            assert sessions(spy) != before


async def test_a_broker_that_freezes_is_left_and_found_again(broker):
    """Test that a broker that stops in the middle (SIGSTOP) is noticed: by the answer it owes where there is something
    to say, else by its silence; that no socket is left behind by the attempts; and that it hears `online` last.
    """
    async with bridged(broker, timeout_seconds=1, keepalive_seconds=1) as rig:
        sockets = _sockets()
        broker.signal(signal.SIGSTOP)
        with pytest.raises(NotPublishedError, match=r"did not answer within 1 s"):
            await rig.bridge.publish_alert(b"{}")
        await until(lambda: rig.losses("lost") + rig.losses("silent") >= 1)
        await until(lambda: rig.losses("unreachable") >= 2)
        broker.signal(signal.SIGCONT)
        await until(lambda: rig.connected)
        async with spying(broker) as spy:
            await spy.until(lambda spy: spy.at(STATE))
            assert spy.at(AVAILABILITY)[-1] == "online"
        await until(lambda: _sockets() <= sockets)


def _sockets() -> int:
    return sum(descriptor.is_socket() for descriptor in Path("/proc/self/fd").iterdir())


async def test_the_end_does_not_wait_for_a_frozen_broker(broker):
    """Test that a bridge whose broker is stopped closes within its grace."""
    loop = asyncio.get_running_loop()
    async with bridged(broker, timeout_seconds=20) as rig:
        broker.signal(signal.SIGSTOP)
        begun = loop.time()
        await rig.bridge.aclose(0.5)
        assert loop.time() - begun < 3


async def test_a_hurried_end_is_told_too(broker):
    """Test that an end that waits for nothing leaves `offline` behind: a clean one, after which no will is sent."""
    async with bridged(broker) as rig:
        await rig.bridge.aclose(0)
    async with spying(broker) as spy:
        await spy.until(lambda spy: spy.at(AVAILABILITY) == ["offline"])


async def test_who_is_thrown_out_by_its_own_id_does_not_go_to_war(broker, caplog):
    """Test that of two clients with one id, of which the other returns at once each time, ours returns ever more
    seldom, stays once the other has gone, and then says that another was there under its name.
    """
    loop = asyncio.get_running_loop()
    rig = Rig(MqttSection(url=broker.url, node="n1"))
    rig.bridge = rig.make(Patience(first=0.2))
    rig.bridge.start()
    await until(lambda: rig.connected)
    other = Rig(rig.section)
    other.bridge = other.make(Patience(first=0.0))
    other.bridge.start()
    await until(lambda: rig.losses("lost") >= 1)
    begun = loop.time()
    await until(lambda: rig.losses("lost") >= 4)
    assert loop.time() - begun >= 0.1 + 0.2 + 0.4
    await other.bridge.aclose(1)
    await until(lambda: rig.connected)
    assert "another specd speaks as node n1" in caplog.text
    async with spying(broker) as spy:
        await spy.until(lambda spy: spy.at(AVAILABILITY) == ["online"])
    await rig.bridge.aclose(1)


async def test_a_take_over_that_the_broker_tells_of_is_waited_out():
    """Test that the reason code "session taken over" (which mosquitto 2.0.11 does not give) is known for what it is."""

    async def throw_out(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (
            b"\x20\x03\x00\x00\x00",
            b"\xe0\x01\x8e",
        ):  # CONNACK to CONNECT, DISCONNECT to SUBSCRIBE
            await reader.read(1024)
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(throw_out, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        rig = Rig(MqttSection(url=f"mqtt://127.0.0.1:{port}", node="n1"))
        rig.bridge = rig.make(Patience(taken_over=30.0))
        rig.bridge.start()
        await until(lambda: rig.losses("taken_over") == 1)
        await rig.bridge.aclose(1)


@pytest.mark.parametrize("failures", [1, 3, 200])
def test_pauses_are_random_bounded_and_longer_after_a_take_over(failures):
    """Test that they double up to the limit, spread over half of it, and add the wait that a take-over asks for."""
    patience, rng = Patience(first=1, longest=60, taken_over=30), Random(0)
    longest = min(60, 2 ** (failures - 1))
    pauses = [patience.pause(failures, "lost", rng) for _ in range(200)]
    assert longest / 2 <= min(pauses) < longest * 0.6
    assert longest * 0.9 < max(pauses) <= longest
    assert patience.pause(failures, "taken_over", rng) >= 30 + longest / 2


async def test_a_stale_will_does_not_stand(broker):
    """Test that an `offline` of another session, such as the will of one that the broker has only now given up, is
    contradicted.
    """
    async with bridged(broker), spying(broker) as spy:
        await spy.until(lambda spy: spy.at(AVAILABILITY) == ["online"])
        await spy.say(AVAILABILITY, b"offline", retain=True)
        await spy.until(lambda spy: spy.at(AVAILABILITY) == ["online", "offline", "online"])


async def test_two_daemons_of_one_node_are_told_of(broker, caplog):
    """Test that the log says so when another daemon comes online under the same name, and not for one alone."""
    async with bridged(broker):
        pass
    async with bridged(broker) as rig:
        assert "another specd" not in caplog.text
        other = Rig(rig.section)
        other.bridge = other.make(QUICK, instance="another")
        other.bridge.start()
        await until(lambda: "another specd speaks as node n1" in caplog.text)
        await other.bridge.aclose(1)


def _with_access_list(tmp_path: Path, *lines: str) -> Mosquitto:
    (tmp_path / "acl").write_text("\n".join(["user spy", "topic readwrite #", "user specd", *lines, ""]))
    passwords = tmp_path / "passwords"
    passwords.write_text("specd:hunter2\nspy:spy\n")
    subprocess.run(["mosquitto_passwd", "-U", passwords], check=True, capture_output=True)
    passwords.chmod(0o644)
    return Mosquitto(tmp_path, f"password_file {passwords}", f"acl_file {tmp_path / 'acl'}")


def _password(tmp_path: Path, text: str = "hunter2\n") -> Path:
    file = tmp_path / "password"
    file.write_text(text)
    return file


async def test_what_the_access_list_forbids_is_noticed(tmp_path, caplog):
    """Test that a publication that the broker acknowledges and throws away is known for what it is, topic by topic, and
    that the topic is good again once the list allows it.
    """
    broker = _with_access_list(
        tmp_path, "topic readwrite specd/n1/availability", "topic readwrite specd/n1/state"
    )
    broker.start()
    with contextlib.closing(broker):
        login = {"user": "specd", "password_file": _password(tmp_path), "timeout_seconds": 1}
        async with bridged(broker, state_seconds=0.5, commands=("reload",), **login) as rig:
            await until(lambda: rig.bridge.status()["denied_topics"] == [TARGET])
            assert rig.registry.get_sample_value("specd_mqtt_denied_topics") == 1
            assert "specd/n1/target does not come back" in caplog.text
            with pytest.raises(NotPublishedError, match="access list"):
                await rig.bridge.publish_alert(b"{}")
            (tmp_path / "acl").write_text("user specd\ntopic readwrite specd/n1/#\n")
            broker.signal(signal.SIGHUP)
            await until(lambda: TARGET not in rig.bridge.status()["denied_topics"])
            await rig.bridge.publish_alert(b"{}")
            assert rig.bridge.status()["denied_topics"] == []


async def test_a_wrong_password_is_refused_and_a_new_one_taken(tmp_path):
    """Test that the broker's refusal is told, and that a reload with the right password in the file gets in."""
    broker = _with_access_list(tmp_path, "topic readwrite specd/#")
    broker.start()
    with contextlib.closing(broker):
        section = MqttSection(
            url=broker.url, node="n1", user="specd", password_file=_password(tmp_path, "wrong")
        )
        rig = Rig(section)
        rig.bridge.start()
        await until(lambda: rig.losses("refused") > 0)
        assert "authori" in rig.bridge.status()["trouble"].lower()
        _password(tmp_path)
        rig.configure()
        await until(lambda: rig.connected)
        await rig.bridge.aclose(1)


def _certificates(directory: Path) -> None:
    """A certificate authority, and what it signed for the broker and for specd."""

    def openssl(*arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=directory)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", 2)
    for name in ("localhost", "specd"):
        names = directory / f"{name}.ext"
        names.write_text(f"subjectAltName = DNS:{name}\n")
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.pem", "-days", 2, "-extfile", names)  # fmt: skip


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs openssl, which is in Debian's package openssl"
)
@pytest.mark.filterwarnings(r"ignore:.*ssl\.SSLSocket:pytest.PytestUnraisableExceptionWarning")
async def test_tls_in_both_directions(tmp_path):
    """Test that the broker's certificate is checked, and that one of ours is shown where the broker asks for it."""
    _certificates(tmp_path)
    files = [
        f"cafile {tmp_path}/ca.pem",
        f"certfile {tmp_path}/localhost.pem",
        f"keyfile {tmp_path}/localhost.key",
    ]
    broker = Mosquitto(tmp_path, *files, "require_certificate true", tls=True)
    broker.start()
    with contextlib.closing(broker):
        ours = {"cert_file": tmp_path / "specd.pem", "key_file": tmp_path / "specd.key"}
        async with bridged(broker, ca_file=tmp_path / "ca.pem", **ours) as rig:
            rig.configure(ca_file=None)
            await until(lambda: rig.losses("unreachable") > 0)
            assert "certificate verify failed" in rig.bridge.status()["trouble"].lower()
    gc.collect()  # paho leaves the socket of a failed handshake to it, and the warning belongs to this test


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"user": "u", "password_file": "gone"}, "mqtt.password_file: gone cannot be read: No such file"),
        ({"user": "u", "password_file": os.devnull}, "mqtt.password_file: /dev/null is empty"),
        ({"ca_file": "gone"}, "mqtt.ca_file: gone cannot be read"),
        ({"ca_file": os.devnull}, "mqtt.ca_file: /dev/null holds no certificates"),
        ({"cert_file": os.devnull, "key_file": os.devnull}, "mqtt.cert_file and mqtt.key_file"),
    ],
)
def test_files_that_cannot_be_used_are_refused_by_a_sentence(files, sentence):
    """Test that each file is read before anything is put in force, and its fault told by its key."""
    section = MqttSection(
        url="mqtts://localhost",
        **{key: Path(value) if "file" in key else value for key, value in files.items()},
    )
    with pytest.raises(UserError, match=sentence):
        read_settings(section, "")


def test_ids_differ_by_instance_and_secrets_do_not_show(tmp_path):
    """Test that two instances on one host have different client ids, and that no repr holds the password."""
    section = MqttSection(url="mqtt://localhost", user="u", password_file=_password(tmp_path))
    one, other = read_settings(section, "a"), read_settings(section, "b")
    assert one.client_id != other.client_id
    assert "hunter2" not in repr(one)
    assert one == read_settings(section, "a")
    _password(tmp_path, "changed")
    assert one != read_settings(section, "a")
