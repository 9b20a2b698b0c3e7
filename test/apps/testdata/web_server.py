"""A server of WebSockets and of server-sent events."""
import asyncio

from aiohttp import WSMsgType, web


async def socket(request):
    answer = web.WebSocketResponse(max_msg_size=0, protocols=["chat"])
    await answer.prepare(request)
    async for message in answer:
        if message.type == WSMsgType.TEXT and message.data == "bye":
            await answer.close(code=4001, message=b"as you like")
        elif message.type == WSMsgType.TEXT:
            await answer.send_str(message.data)
        elif message.type == WSMsgType.BINARY:
            await answer.send_bytes(message.data)
    return answer


async def events(request):
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await answer.prepare(request)
    for n in range(int(request.query.get("n", "1000000"))):
        await answer.write(b"data: %d\n\n" % n)
        await asyncio.sleep(0.1)
    return answer


app = web.Application()
app.add_routes([web.get("/socket", socket), web.get("/events", events)])
web.run_app(app, port=8080, print=None, shutdown_timeout=1)
