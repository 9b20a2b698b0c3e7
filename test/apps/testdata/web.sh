exec python3 /apps/web_server.py
