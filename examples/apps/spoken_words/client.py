"""Sends a file of sound to the server as fast as it is spoken, and prints the words that come back.

python client.py words.flac ws://127.0.0.1:8000/listen
"""

from __future__ import annotations

import asyncio
import json
import sys

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from nnasync.streaming import audio_file


async def speak(socket: ClientConnection, file: str) -> None:
    """Send hop after hop, at the pace of the sound, and a second of silence."""
    async with audio_file(file) as sound:
        async for hop in sound:
            await socket.send((hop.data * 32767).astype("<i2").tobytes())
    await socket.send(np.zeros(16_000, "<i2").tobytes())
    await asyncio.sleep(1)
    await socket.close()


async def main(file: str, address: str) -> None:
    """Print the words until the server, or the file, is at its end."""
    async with connect(address) as socket, asyncio.TaskGroup() as tasks:
        tasks.create_task(speak(socket, file))
        try:
            while True:
                word = json.loads(await socket.recv())
                print(f"{word['at_s']:6.2f} s  {word['word']}")
        except ConnectionClosed as error:
            print(error.reason)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
