exec python3 /apps/grpc_server.py
