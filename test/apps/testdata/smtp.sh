exec python3 -m aiosmtpd -n -l 0.0.0.0:2525 -c aiosmtpd.handlers.Sink
