"""A small driver of headless Chromium for tests: opens a page, collects errors, takes pictures.

Speaks Chromium's own protocol through tornado, which dask brings along. Tests that use it skip where there
is no ``chromium`` on the PATH.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the PATH (Debian: apt-get install chromium)"
)


@dataclass
class Visit:
    """What was seen of one page at one width in one colour scheme."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    values: dict = field(default_factory=dict)


def visit(
    page: Path,
    *,
    width: int = 1200,
    dark: bool = False,
    ready: str = "true",
    ask: dict | None = None,
    picture: Path | None = None,
    whole: bool = False,
) -> Visit:
    """Open a file, wait until the expression ``ready`` is true, evaluate ``ask``, and take a picture."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        child = subprocess.Popen(
            [
                CHROMIUM,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--mute-audio",
                "--remote-debugging-port=0",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": profile},
        )
        try:
            return asyncio.run(_visit(Path(profile), page, width, dark, ready, ask or {}, picture, whole))
        finally:
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


async def _visit(profile, page, width, dark, ready, ask, picture, whole) -> Visit:
    import urllib.request

    from tornado.websocket import websocket_connect

    for _ in range(300):
        port_file = profile / "DevToolsActivePort"
        if port_file.is_file() and port_file.read_text().strip():
            break
        await asyncio.sleep(0.1)
    port = port_file.read_text().split()[0]
    answer = await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/json")
    targets = json.loads(answer.read())
    answer.close()
    url = next(t["webSocketDebuggerUrl"] for t in targets if t["type"] == "page")
    socket = await websocket_connect(url, max_message_size=2**28)
    seen = Visit()
    numbers = itertools.count(1)

    async def call(method, **params):
        number = next(numbers)
        await socket.write_message(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(await asyncio.wait_for(socket.read_message(), 60))
            _note(seen, message)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    for domain in ("Page", "Runtime", "Log", "Network"):
        await call(f"{domain}.enable")
    height = 900
    await call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=height,
        deviceScaleFactor=1,
        mobile=width < 600,
    )
    scheme = "dark" if dark else "light"
    await call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    await call("Page.navigate", url=page.resolve().as_uri())

    async def value(expression):
        answer = await call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    for _ in range(300):
        if await value(f"document.readyState === 'complete' && !!({ready})"):
            break
        await asyncio.sleep(0.1)
    else:
        seen.errors.append(f"not ready after 30 s: {ready}")
    seen.values = {name: await value(expression) for name, expression in ask.items()}
    if picture is not None:
        shot = await call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        picture.write_bytes(base64.b64decode(shot["data"]))
    socket.close()
    while await asyncio.wait_for(socket.read_message(), 30) is not None:
        pass  # until the other side has closed, too
    socket.stream.close()
    return seen


def _note(seen: Visit, message: dict) -> None:
    method, params = message.get("method"), message.get("params", {})
    if method == "Runtime.exceptionThrown":
        details = params["exceptionDetails"]
        seen.errors.append(details.get("exception", {}).get("description") or details["text"])
    elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
        seen.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
    elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
        seen.errors.append(params["entry"]["text"])
    elif method == "Network.requestWillBeSent":
        seen.requests.append(params["request"]["url"])
