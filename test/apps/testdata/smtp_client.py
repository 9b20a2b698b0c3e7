"""Keeps a connection to an SMTP server."""
import os
import smtplib
import sys
import time

try:
    server = smtplib.SMTP(sys.argv[1], 2525, timeout=20)
    while not os.path.exists(sys.argv[2]):
        if server.noop()[0] != 250:
            raise smtplib.SMTPServerDisconnected
        time.sleep(0.2)
    print("kept")
except (smtplib.SMTPException, OSError):
    print("ended")
