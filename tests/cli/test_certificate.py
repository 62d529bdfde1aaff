"""Serving over HTTPS: which files do, what is told of others, and a page that is fetched."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest
import websockets
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from nnasync.cli import certificate, main
from nnasync.cli.live.server import LiveOptions
from nnasync.errors import InvalidArgument
from tests.certificates import certificate_of, pem
from tests.cli.live.conftest import serving

TOKEN = "a-token-of-the-test"
_PASSWORD = serialization.BestAvailableEncryption(b"secret")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate and its key, another key, and files that are neither."""
    folder = tmp_path_factory.mktemp("certificates")
    key = ec.generate_private_key(ec.SECP256R1())
    (folder / "page.pem").write_bytes(certificate_of(key))
    (folder / "page.key").write_bytes(pem(key))
    (folder / "both.pem").write_bytes(certificate_of(key) + pem(key))
    (folder / "other.key").write_bytes(pem(ec.generate_private_key(ec.SECP256R1())))
    (folder / "locked.key").write_bytes(pem(key, _PASSWORD))
    (folder / "cut.pem").write_bytes(certificate_of(key)[:200])
    (folder / "empty").touch()
    return folder


@pytest.mark.parametrize(("name", "key"), [("page.pem", "page.key"), ("both.pem", None)])
def test_what_fits_is_taken(files: Path, name: str, key: str | None) -> None:
    certificate.check(files / name, files / key if key else None)
    certificate.check(None, None)


@pytest.mark.parametrize(
    ("name", "key", "told"),
    [
        ("nothing.pem", "page.key", "cannot read .*nothing.pem: No such file or directory"),
        ("page.pem", "nothing.key", "cannot read .*nothing.key: No such file or directory"),
        (".", "page.key", "is no file"),
        ("page.pem", "other.key", "the key in .*other.key is not that of .* in .*page.pem"),
        ("page.pem", "locked.key", "the key in .*locked.key has a password; .*openssl pkey"),
        ("page.pem", None, "page.pem has no private key in PEM format; see --key"),
        ("page.key", "page.pem", "page.key has no certificate in PEM format"),
        ("cut.pem", "page.key", "cut.pem has no certificate in PEM format"),
        ("empty", None, "empty has no certificate in PEM format"),
        ("page.pem", "empty", "empty has no private key in PEM format"),
        (None, "page.key", "page.key needs the --certificate that it belongs to"),
    ],
)
def test_what_does_not_fit_is_told(
    files: Path, name: str | None, key: str | None, told: str
) -> None:
    with pytest.raises(InvalidArgument, match=told):
        certificate.check(files / name if name else None, files / key if key else None)


def test_a_file_that_may_not_be_read_is_told(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)  # A test that runs as root may read all files.
    with pytest.raises(InvalidArgument, match=r"cannot read .*page.pem: Permission denied"):
        certificate.check(files / "page.pem", files / "page.key")


def test_the_command_tells_it_before_anything_is_compiled(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(*_: object) -> None:
        raise AssertionError("networks were opened")

    monkeypatch.setattr("nnasync.cli.live.server.open_networks", compiled)
    arguments = ["--certificate", str(files / "page.pem"), "--key", str(files / "other.key")]
    assert main(["live", "--port", "0", *arguments]) == 1
    assert "is not that of the certificate" in capsys.readouterr().err


@pytest.mark.anyio
@pytest.mark.one_loop("uvicorn runs on asyncio alone")
async def test_a_page_and_its_socket_over_https(files: Path, toy_data: Path) -> None:
    options = LiveOptions(
        port=0,
        token=TOKEN,
        data=toy_data,
        certificate=files / "page.pem",
        key=files / "page.key",
    )
    trusted = ssl.create_default_context(cafile=files / "page.pem")
    async with serving(options) as url:
        assert url.startswith("https://127.0.0.1:")
        assert url.endswith(f"/?token={TOKEN}")
        async with httpx.AsyncClient(verify=trusted) as client:
            page = await client.get(url)
            assert page.headers["content-type"].startswith("text/html")
            assert "; Secure" in page.headers["set-cookie"]
            with pytest.raises(httpx.HTTPError):
                await client.get(url.replace("https", "http"))
        origin, _, query = url.partition("/?")
        address = f"{origin.replace('https', 'wss')}/socket?{query}"
        connection = websockets.connect(address, ssl=trusted, origin=websockets.Origin(origin))
        async with connection as socket:
            assert '"type":"hello"' in str(await socket.recv())
