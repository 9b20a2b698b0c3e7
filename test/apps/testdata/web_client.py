"""A strict client of WebSockets."""
import asyncio
import os
import sys

import websockets


async def check(url):
    async with websockets.connect(url, max_size=None, subprotocols=["chat"]) as socket:
        for n in range(100):
            await socket.send("message %d" % n)
            assert await socket.recv() == "message %d" % n
        big = bytes(range(256)) * 8192
        await socket.send(big)
        assert await socket.recv() == big
        await asyncio.wait_for(await socket.ping(), 10)
        await socket.send("bye")
        try:
            await socket.recv()
        except websockets.ConnectionClosed:
            pass
        print(socket.subprotocol, socket.close_code, socket.close_reason)


async def session(url, stop):
    try:
        async with websockets.connect(url) as socket:
            while not os.path.exists(stop):
                await socket.send("still here")
                assert await socket.recv() == "still here"
                await asyncio.sleep(0.2)
        print("kept")
    except (websockets.WebSocketException, OSError):
        # Its first attempt may come too late, after the name of the server.
        print("ended")


asyncio.run(check(sys.argv[1]) if len(sys.argv) == 2 else session(*sys.argv[1:]))
