"""A gRPC client of every kind of call."""
import os
import sys
import time

import grpc

channel = grpc.insecure_channel(sys.argv[1])
unary = channel.unary_unary("/apps.Echo/Unary")
download = channel.unary_stream("/apps.Echo/Download")
upload = channel.stream_unary("/apps.Echo/Upload")
chat = channel.stream_stream("/apps.Echo/Chat")


def failure(call):
    try:
        call()
    except grpc.RpcError as error:
        return error
    return None


def check():
    answer, call = unary.with_call(b"hello", timeout=20)
    print(answer.decode(), dict(call.initial_metadata()).get("x-header"))
    print(failure(lambda: unary(b"wait", timeout=0.5)).code().name)
    print(sum(int(n) for n in download(b"1000", timeout=20)))
    print(upload((b"x" * 1000 for _ in range(1000)), timeout=20).decode())
    print(b"".join(chat((b"%d" % n for n in range(10)), timeout=20)).decode())
    print(len(unary(b"x" * 3000000, timeout=20)))


def error():
    error = failure(lambda: unary(b"fail", timeout=20))
    trailers = dict(error.trailing_metadata())
    print(error.code().name, error.details(), trailers.get("x-trailer"), len(trailers.get("x-detail-bin", b"")))


def session(stop):
    def messages():
        while not os.path.exists(stop):
            yield b"still here"
            time.sleep(0.2)
    try:
        for _ in chat(messages()):
            pass
        print("kept")
    except grpc.RpcError:
        print("ended")


{"check": check, "error": error, "session": session}[(sys.argv + ["check"])[2]](*sys.argv[3:])
