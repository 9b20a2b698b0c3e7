"""Publishes messages with confirmations and consumes them."""
import os
import sys

import pika

parameters = pika.ConnectionParameters(sys.argv[1], heartbeat=2, socket_timeout=20)


def check():
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    for n in range(100):
        channel.basic_publish("", queue, b"%d" % n * 1000, mandatory=True)
    received = 0
    for method, _, body in channel.consume(queue, inactivity_timeout=20):
        assert body == b"%d" % received * 1000
        channel.basic_ack(method.delivery_tag)
        received += 1
        if received == 100:
            break
    print(received)
    connection.close()


def session(stop):
    try:
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        while not os.path.exists(stop):
            channel.basic_publish("", queue, b"still here")
            connection.process_data_events(0.2)
        print("kept")
    except (pika.exceptions.AMQPError, OSError):
        print("ended")


check() if len(sys.argv) == 2 else session(sys.argv[2])
