"""A gRPC server whose messages are bytes."""
import signal
import time
from concurrent import futures

import grpc


def unary(request, context):
    if request == b"fail":
        context.set_trailing_metadata([("x-trailer", "yes"), ("x-detail-bin", b"\x00" * 4000)])
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "as you like")
    if request == b"wait":
        time.sleep(5)
    context.send_initial_metadata([("x-header", "yes")])
    return request


def download(request, context):
    for n in range(int(request)):
        yield b"%d" % n


def upload(requests, context):
    return b"%d" % sum(len(request) for request in requests)


def chat(requests, context):
    for request in requests:
        yield request


server = grpc.server(futures.ThreadPoolExecutor(32))
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("apps.Echo", {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Download": grpc.unary_stream_rpc_method_handler(download),
    "Upload": grpc.stream_unary_rpc_method_handler(upload),
    "Chat": grpc.stream_stream_rpc_method_handler(chat),
})])
server.add_insecure_port("0.0.0.0:50051")
server.start()
signal.signal(signal.SIGTERM, lambda *_: server.stop(1))
server.wait_for_termination()
